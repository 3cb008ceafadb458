//! The error of receiving.

use std::{fmt, sync::Arc};

use ibex_transport::channel::{ChannelError, FailureReason};

use super::{ChannelFault, NotOpened, Suspensions};
use crate::{Counts, EndCause, OpenError, Region, Suspension};

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
pub struct RecvError(RecvFailure);

/// The kinds of a [`RecvError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecvErrorKind {
    /// No message is there, and the call does not wait.
    Empty,
    /// No message came before the caller's time was up.
    Timeout,
    /// The peer has not opened its end. `is_transient()` is true if the call did not wait for all of
    /// `open_timeout`. It is false if the call did: probably the peer never opens this name, but a
    /// later call succeeds if it does.
    NotOpened,
    /// The channel has ended in order: every sender is gone and everything was received.
    Ended,
    /// The peer's end has another message type.
    Mismatch,
    /// The channel broke. Everything that arrived was handed out before.
    Disconnected,
    /// The bytes of one message are not a valid value. The message was released, and the next call
    /// goes on.
    Corrupt,
    /// The kernel refused memory for what has come (shared memory), which stays where it is. The
    /// error is returned once. Later calls wait for memory, as they do for a message, until there
    /// is memory or their time is up. The node asks for memory every 20 ms.
    Memory,
    /// A region cannot be provided: slices of it exist, it is a mapped file or memory of an owner, the kernel refuses memory
    /// for its pages, or the receiver has as many as it takes.
    RegionRefused,
    /// A fan-in could not open its end with this peer.
    CannotOpen,
    /// The process is a fork of the one that opened the channel.
    UsedAfterFork,
}

enum RecvFailure {
    Channel(ChannelFault),
    /// No peer sent anything to a call that waited (`Timeout`) or did not (`Empty`). Some of the
    /// peers may have no connection.
    OfNobody(RecvErrorKind, Vec<Arc<Suspension>>),
    Opening(OpenError),
    /// A region was not provided.
    Region(Box<(Region, ChannelFault)>),
}

impl RecvError {
    /// The error of a region that is not provided.
    pub(crate) fn of_region(region: Region, error: ChannelError) -> Self {
        Self(RecvFailure::Region(Box::new((region, error.into()))))
    }

    /// Returns the region that [`provide`](crate::Receiver::provide) did not take; `None` of another
    /// call's error.
    #[must_use]
    pub fn into_region(self) -> Option<Region> {
        match self.0 {
            RecvFailure::Region(refused) => Some(refused.0),
            _ => None,
        }
    }

    /// The error of a fan-in's call to which nothing came.
    pub(crate) fn of_nobody(kind: RecvErrorKind, suspended: Vec<Arc<Suspension>>) -> Self {
        Self(RecvFailure::OfNobody(kind, suspended))
    }

    /// Returns the kind of failure.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> RecvErrorKind {
        match &self.0 {
            RecvFailure::Channel(fault) => kind_of(fault),
            RecvFailure::OfNobody(kind, _) => *kind,
            RecvFailure::Opening(_) => RecvErrorKind::CannotOpen,
            RecvFailure::Region(refused) => kind_of(&refused.1),
        }
    }

    /// Returns whether a later call may return a message, although this one has found none in
    /// its time.
    #[must_use]
    #[inline]
    pub fn is_transient(&self) -> bool {
        match &self.0 {
            RecvFailure::Channel(fault) => fault.is_transient(),
            RecvFailure::OfNobody(..) => true,
            RecvFailure::Opening(_) | RecvFailure::Region(_) => false,
        }
    }

    /// Returns whether the channel goes on, as behind a message that is not valid.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        use RecvErrorKind::{Corrupt, Memory, RegionRefused};
        self.is_transient() || matches!(self.kind(), Corrupt | Memory | RegionRefused)
    }

    /// Returns the channel's name, where the error has it.
    #[must_use]
    pub fn channel(&self) -> Option<&str> {
        match &self.0 {
            RecvFailure::Opening(error) => error.channel(),
            _ => self.fault()?.channel(),
        }
    }

    /// Returns the peer as an address, where the error has it.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        match &self.0 {
            RecvFailure::Opening(error) => error.peer(),
            _ => self.fault()?.peer(),
        }
    }

    /// Returns the message that is not valid.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        match self.fault()?.reason()? {
            FailureReason::Corrupt { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }

    /// Returns how far the channel is, or came, where the error has it. `sent` is 0, because this
    /// end does not know that number.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.fault()?.counts()
    }

    /// Returns what ended the channel, if it broke.
    #[must_use]
    pub fn cause(&self) -> Option<&EndCause> {
        self.fault()?.cause()
    }

    /// Returns what is known of an end that the peer has not opened in time.
    #[must_use]
    pub fn not_opened(&self) -> Option<&NotOpened> {
        self.fault()?.not_opened()
    }

    /// Returns the suspension of the session, if the call had no chance because the session has no
    /// connection, or one over which the peer's host is silent: since when, why, and what this node
    /// does about it. Of a fan-in, it is that of a peer from which something might have come.
    #[must_use]
    pub fn suspended(&self) -> Option<&Suspension> {
        match &self.0 {
            RecvFailure::OfNobody(_, suspended) => suspended.first().map(|first| &**first),
            _ => self.fault()?.suspended(),
        }
    }

    /// Returns whether the time was up although a message has come: there is no room for it
    /// within this node's [`memory_limit`](crate::NodeBuilder::memory_limit).
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        let reason = self.fault().and_then(ChannelFault::reason);
        matches!(reason, Some(FailureReason::NoMessage { lacks_room: true }))
    }

    /// Returns the error of an end that a [`FanIn`](crate::FanIn) could not open with a peer.
    ///
    /// # Errors
    ///
    /// This error itself, if it is another one.
    pub fn into_open_error(self) -> Result<OpenError, Self> {
        match self.0 {
            RecvFailure::Opening(error) => Ok(error),
            other => Err(Self(other)),
        }
    }

    fn fault(&self) -> Option<&ChannelFault> {
        match &self.0 {
            RecvFailure::Channel(fault) => Some(fault),
            RecvFailure::Region(refused) => Some(&refused.1),
            RecvFailure::OfNobody(..) | RecvFailure::Opening(_) => None,
        }
    }
}

#[inline]
fn kind_of(fault: &ChannelFault) -> RecvErrorKind {
    match fault {
        ChannelFault::NotOpened(_) | ChannelFault::Other(ChannelError::NotOpenYet) => {
            RecvErrorKind::NotOpened
        }
        ChannelFault::Other(ChannelError::WouldBlock) => RecvErrorKind::Empty,
        ChannelFault::Other(ChannelError::Ended) => RecvErrorKind::Ended,
        ChannelFault::Other(ChannelError::Failed(failure)) => match &failure.reason {
            FailureReason::NoMessage { .. } => RecvErrorKind::Timeout,
            FailureReason::Mismatch { .. } => RecvErrorKind::Mismatch,
            FailureReason::Corrupt { .. } => RecvErrorKind::Corrupt,
            FailureReason::Memory(_) => RecvErrorKind::Memory,
            FailureReason::RegionUnfit(_) => RecvErrorKind::RegionRefused,
            FailureReason::UsedAfterFork => RecvErrorKind::UsedAfterFork,
            _ => RecvErrorKind::Disconnected,
        },
    }
}

impl From<ChannelError> for RecvError {
    #[inline]
    fn from(error: ChannelError) -> Self {
        Self(RecvFailure::Channel(error.into()))
    }
}

impl From<OpenError> for RecvError {
    fn from(error: OpenError) -> Self {
        Self(RecvFailure::Opening(error))
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            RecvFailure::Channel(ChannelFault::Other(ChannelError::WouldBlock)) => {
                f.write_str("no message is there")
            }
            RecvFailure::Channel(fault) => fault.fmt(f),
            RecvFailure::Region(refused) => {
                if let (Some(channel), Some(peer)) = (self.channel(), self.peer()) {
                    write!(f, "channel \"{channel}\" with {peer} takes no region: ")?;
                }
                refused.1.fmt(f)
            }
            RecvFailure::OfNobody(_, suspended) => write!(
                f,
                "nothing came from any peer within the time-out{}",
                Suspensions(suspended)
            ),
            RecvFailure::Opening(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RecvError {}

ibex_base::debug_as_display!(RecvError);

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
