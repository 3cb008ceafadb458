//! The error of receiving.

use std::{io, sync::Arc};

use ibex_transport::channel::{ChannelError, ChannelFailure, FailureReason};

use super::{
    Suspensions,
    failure::{ChannelErrorKind, Failure, error_of_channel, kinds},
    wording::Wording,
};
use crate::{OpenError, Region, Suspension};

/// The error of a call that receives: no message, for now or for ever.
///
/// Calls of [`Receiver`](crate::Receiver), [`VersionedReceiver`](crate::VersionedReceiver) and
/// [`FanIn`](crate::FanIn) return it, and [`FanInEvent::Lost`](crate::FanInEvent::Lost) has it for
/// one peer of a fan-in. The text names the channel, the peer and their state, and says what
/// happened, what follows and what to do. [`kind`](Self::kind) is for programs that decide by it.
///
/// ```
/// use ibex::{Raw, Receiver, RecvError, RecvErrorKind};
///
/// /// Takes everything that is there, and returns whether more may come.
/// fn drain(bytes: &mut Receiver<[u8], Raw>) -> Result<bool, RecvError> {
///     loop {
///         match bytes.try_recv() {
///             Ok(message) => message.ack(),
///             Err(error) if error.is_transient() => return Ok(true),
///             Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(false),
///             Err(error) => return Err(error),
///         }
///     }
/// }
/// ```
///
/// | kind | returned by | later calls |
/// |---|---|---|
/// | [`Empty`](RecvErrorKind::Empty) | `try_` calls | go on |
/// | [`Timeout`](RecvErrorKind::Timeout) | calls with a time-out | go on |
/// | [`NotOpened`](RecvErrorKind::NotOpened) | all, until the peer has opened its end | go on once it has |
/// | [`Ended`](RecvErrorKind::Ended) | all, behind the last message | return the same |
/// | [`Mismatch`](RecvErrorKind::Mismatch) | all, as the channel never opens | return the same; build both programs with one type |
/// | [`Disconnected`](RecvErrorKind::Disconnected) | all, behind what had arrived | return the same; [`cause`](RecvError::cause) says whether to open the channel again, to connect again, or to make a node |
/// | [`Corrupt`](RecvErrorKind::Corrupt) | all, in place of the message | go on behind it |
/// | [`Memory`](RecvErrorKind::Memory) | all, over shared memory | wait for memory |
/// | [`RegionRefused`](RecvErrorKind::RegionRefused) | [`provide`](crate::Receiver::provide), which gives the region back in [`into_region`](RecvError::into_region) | go on |
/// | [`CannotOpen`](RecvErrorKind::CannotOpen) | [`FanInEvent::Lost`](crate::FanInEvent::Lost) | |
/// | [`UsedAfterFork`](RecvErrorKind::UsedAfterFork) | all, in a child of `fork` | return the same |
///
/// `Empty` and `NotOpened` of a `try_` call are answers of the hot path: they allocate nothing
/// and name neither the channel nor the peer. Those of [`recv_timeout`](crate::Receiver::recv_timeout)
/// name both.
pub struct RecvError(Failure<RecvErrorKind>);

kinds! {
    /// The kinds of a [`RecvError`].
    pub enum RecvErrorKind {
        /// No message is there, and the call does not wait.
        Empty => WouldBlock,
        /// No message came before the caller's time was up.
        Timeout => TimedOut,
        /// The peer has not opened its end. `is_transient()` is true if the call did not wait for all of
        /// `open_timeout`. It is false if the call did: probably the peer never opens this name, but a
        /// later call succeeds if it does.
        NotOpened => TimedOut,
        /// The channel has ended in order: every sender is gone and everything was received.
        Ended => UnexpectedEof,
        /// The peer's end has another message type.
        Mismatch => InvalidData,
        /// The channel broke. Everything that arrived was handed out before.
        Disconnected => ConnectionAborted,
        /// The bytes of one message are not a valid value. The message was released, and the next call
        /// goes on.
        Corrupt => InvalidData,
        /// The kernel refused memory for what has come (shared memory), which stays where it is. The
        /// error is returned once. Later calls wait for memory, as they do for a message, until there
        /// is memory or their time is up. The node asks for memory every 20 ms.
        Memory => OutOfMemory,
        /// A region cannot be provided: slices of it exist, it is a mapped file or memory of an owner, the kernel refuses memory
        /// for its pages, or the receiver has as many as it takes.
        RegionRefused => Other,
        /// A fan-in could not open its end with this peer.
        CannotOpen => Other,
        /// The process is a fork of the one that opened the channel.
        UsedAfterFork => Other,
    }
}

impl ChannelErrorKind for RecvErrorKind {
    const WOULD_BLOCK: &'static str = "no message is there";
    const ENDED_BY_PEER: io::ErrorKind = io::ErrorKind::UnexpectedEof;

    #[inline]
    fn of(error: &ChannelError) -> Self {
        match error {
            ChannelError::NotOpenYet => Self::NotOpened,
            ChannelError::WouldBlock => Self::Empty,
            ChannelError::Ended => Self::Ended,
            ChannelError::Failed(failure) => match &failure.reason {
                FailureReason::NotOpened { .. } => Self::NotOpened,
                FailureReason::NoMessage { .. } => Self::Timeout,
                FailureReason::Mismatch { .. } => Self::Mismatch,
                FailureReason::Corrupt { .. } => Self::Corrupt,
                FailureReason::Memory(_) => Self::Memory,
                FailureReason::RegionUnfit(_) => Self::RegionRefused,
                FailureReason::UsedAfterFork => Self::UsedAfterFork,
                _ => Self::Disconnected,
            },
        }
    }
}

error_of_channel!(RecvError, RecvErrorKind);

impl RecvError {
    /// The error of a region that is not provided.
    pub(crate) fn of_region(region: Region, error: ChannelError) -> Self {
        let said = Wording(&error);
        let text = match error.failure() {
            Some(ChannelFailure { channel, peer, .. }) => {
                format!("channel \"{channel}\" with {peer} takes no region: {said}")
            }
            None => said.to_string(),
        };
        let kind = RecvErrorKind::of(&error);
        Self(Failure::other(kind, text, |facts| {
            facts.fault = Some(error);
            facts.region = Some(region);
        }))
    }

    /// Returns the region that [`provide`](crate::Receiver::provide) did not take; `None` of another
    /// call's error.
    #[must_use]
    pub fn into_region(self) -> Option<Region> {
        match self.0 {
            Failure::Other(_, facts) => facts.region,
            _ => None,
        }
    }

    /// The error of a fan-in's call to which nothing came in time, although these peers may have sent
    /// something.
    pub(crate) fn of_nobody(suspended: Vec<Arc<Suspension>>) -> Self {
        let text = "nothing came from any peer within the time-out";
        if suspended.is_empty() {
            return Self(Failure::Plain(RecvErrorKind::Timeout, text));
        }
        let text = format!("{text}{}", Suspensions(&suspended));
        Self(Failure::other(RecvErrorKind::Timeout, text, |facts| {
            facts.suspended = suspended;
        }))
    }

    /// Returns whether a later call may return a message, although this one has found none in
    /// its time.
    #[must_use]
    #[inline]
    pub fn is_transient(&self) -> bool {
        match &self.0 {
            Failure::Channel(error) => error.is_transient(),
            other => other.kind() == RecvErrorKind::Timeout,
        }
    }

    /// Returns whether the channel goes on, as behind a message that is not valid.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        use RecvErrorKind::{Corrupt, Memory, RegionRefused};
        self.is_transient() || matches!(self.kind(), Corrupt | Memory | RegionRefused)
    }

    /// Returns the message that is not valid.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        match self.0.reason()? {
            FailureReason::Corrupt { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }

    /// Returns whether the time was up although a message has come: there is no room for it
    /// within this node's [`memory_limit`](crate::NodeBuilder::memory_limit).
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        let reason = self.0.reason();
        matches!(reason, Some(FailureReason::NoMessage { lacks_room: true }))
    }

    /// Returns the error of an end that a [`FanIn`](crate::FanIn) could not open with a peer.
    ///
    /// # Errors
    ///
    /// This error itself, if it is another one.
    pub fn into_open_error(self) -> Result<OpenError, Self> {
        let opening = self.0.facts().and_then(|facts| facts.opening.clone());
        opening.ok_or(self)
    }
}

impl From<OpenError> for RecvError {
    fn from(error: OpenError) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (channel, peer) = (owned(error.channel()), owned(error.peer()));
        let text = error.to_string();
        Self(Failure::other(RecvErrorKind::CannotOpen, text, |facts| {
            (facts.channel, facts.peer) = (channel, peer);
            facts.opening = Some(error);
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    #[test]
    fn a_poll_in_vain_is_transient_and_the_error_is_small() {
        assert!(size_of::<RecvError>() <= 4 * size_of::<usize>());
        for failure in [ChannelError::WouldBlock, ChannelError::NotOpenYet] {
            let error = RecvError::from(failure);
            assert!(error.is_transient() && error.spares_channel(), "{error}");
            assert_eq!((error.channel(), error.peer()), (None, None));
        }
        assert!(!RecvError::from(ChannelError::Ended).spares_channel());
    }
}
