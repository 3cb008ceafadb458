//! The error of receiving.

use std::{fmt, sync::Arc};

use ibex_transport::channel::{self, RecvFailure};

use super::{Subject, Suspensions};
use crate::{Counts, EndCause, NotOpened, OpenError, Suspension};

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
/// | [`CannotOpen`](RecvErrorKind::CannotOpen) | [`FanInEvent::Lost`](crate::FanInEvent::Lost) | |
/// | [`UsedAfterFork`](RecvErrorKind::UsedAfterFork) | all, in a child of `fork` | return the same |
///
/// `Empty` and `NotOpened` of a `try_` call are answers of the hot path: they allocate nothing
/// and name neither the channel nor the peer. Those of [`recv_timeout`](crate::Receiver::recv_timeout)
/// name both.
pub struct RecvError(Failure);

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
    /// A fan-in could not open its end with this peer.
    CannotOpen,
    /// The process is a fork of the one that opened the channel.
    UsedAfterFork,
}

enum Failure {
    Channel(RecvFailure),
    /// No peer sent anything to a call that waited (`Timeout`) or did not (`Empty`). Some of the
    /// peers may have no connection.
    OfNobody(RecvErrorKind, Vec<Arc<Suspension>>),
    Opening(OpenError),
}

impl RecvError {
    /// The error of a fan-in's call to which nothing came.
    pub(crate) fn of_nobody(kind: RecvErrorKind, suspended: Vec<Arc<Suspension>>) -> Self {
        Self(Failure::OfNobody(kind, suspended))
    }

    /// Returns the kind of failure.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> RecvErrorKind {
        match &self.0 {
            Failure::Channel(failure) => kind_of(failure),
            Failure::OfNobody(kind, _) => *kind,
            Failure::Opening(_) => RecvErrorKind::CannotOpen,
        }
    }

    /// Returns whether a later call may return a message, although this one has found none in
    /// its time.
    #[must_use]
    #[inline]
    pub fn is_transient(&self) -> bool {
        match &self.0 {
            Failure::Channel(failure) => !matches!(failure, RecvFailure::Failed(_)),
            Failure::OfNobody(..) => true,
            Failure::Opening(_) => false,
        }
    }

    /// Returns whether the channel goes on, as behind a message that is not valid.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        self.is_transient() || matches!(self.kind(), RecvErrorKind::Corrupt | RecvErrorKind::Memory)
    }

    /// Returns the channel's name, where the error has it.
    #[must_use]
    pub fn channel(&self) -> Option<&str> {
        self.subject().map(|subject| subject.channel)
    }

    /// Returns the peer as an address, where the error has it.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.subject().map(|subject| subject.peer)
    }

    /// Returns the message that is not valid.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        match self.failed()? {
            channel::RecvError::Corrupt { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }

    /// Returns how far a channel came that broke, or whose ends do not match. `sent` is 0, because
    /// this end does not know that number.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        match self.failed()? {
            channel::RecvError::Disconnected(error) => Some(error.counts),
            channel::RecvError::Mismatch(error) => Some(error.counts),
            _ => None,
        }
    }

    /// Returns what ended the channel, if it broke.
    #[must_use]
    pub fn cause(&self) -> Option<&EndCause> {
        match self.failed()? {
            channel::RecvError::Disconnected(error) => Some(&error.cause),
            _ => None,
        }
    }

    /// Returns what is known of an end that the peer has not opened in time.
    #[must_use]
    pub fn not_opened(&self) -> Option<&NotOpened> {
        match &self.0 {
            Failure::Channel(RecvFailure::NotOpenInTime(error)) => Some(error),
            _ => match self.failed()? {
                channel::RecvError::NotOpened(error) => Some(error),
                _ => None,
            },
        }
    }

    /// Returns the suspension of the session, if the call had no chance because the session has no
    /// connection, or one over which the peer's host is silent: since when, why, and what this node
    /// does about it. Of a fan-in, it is that of a peer from which something might have come.
    #[must_use]
    pub fn suspended(&self) -> Option<&Suspension> {
        match &self.0 {
            Failure::Channel(RecvFailure::TimedOut(error)) => error.suspended.as_deref(),
            Failure::OfNobody(_, suspended) => suspended.first().map(|first| &**first),
            _ => self.not_opened()?.suspended.as_deref(),
        }
    }

    /// Returns whether the time was up although a message has come: there is no room for it
    /// within this node's [`memory_limit`](crate::NodeBuilder::memory_limit).
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        matches!(&self.0, Failure::Channel(RecvFailure::TimedOut(error)) if error.lacks_room)
    }

    /// Returns the error of an end that could not be opened, or this one again.
    pub(crate) fn into_open_error(self) -> Result<OpenError, Self> {
        match self.0 {
            Failure::Opening(error) => Ok(error),
            other => Err(Self(other)),
        }
    }

    /// The types of both ends, for this repository's tests.
    #[doc(hidden)]
    #[must_use]
    pub fn schema_mismatch(&self) -> Option<&channel::SchemaMismatch> {
        match self.failed()? {
            channel::RecvError::Mismatch(error) => Some(error),
            _ => None,
        }
    }

    fn failed(&self) -> Option<&channel::RecvError> {
        match &self.0 {
            Failure::Channel(RecvFailure::Failed(error)) => Some(error),
            _ => None,
        }
    }

    fn subject(&self) -> Option<Subject<'_>> {
        match &self.0 {
            Failure::Channel(failure) => match failure {
                RecvFailure::TimedOut(error) => Subject::new(&error.channel, &error.peer),
                RecvFailure::NotOpenInTime(error) => Subject::new(&error.channel, &error.peer),
                RecvFailure::Failed(error) => subject_of(error),
                RecvFailure::Empty | RecvFailure::NotOpen => None,
            },
            Failure::Opening(error) => Subject::new(error.channel()?, error.peer()?),
            Failure::OfNobody(..) => None,
        }
    }
}

fn kind_of(failure: &RecvFailure) -> RecvErrorKind {
    use channel::RecvError;

    match failure {
        RecvFailure::Empty => RecvErrorKind::Empty,
        RecvFailure::TimedOut(_) => RecvErrorKind::Timeout,
        RecvFailure::NotOpen | RecvFailure::NotOpenInTime(_) => RecvErrorKind::NotOpened,
        RecvFailure::Failed(error) => match error {
            RecvError::Ended => RecvErrorKind::Ended,
            RecvError::NotOpened(_) => RecvErrorKind::NotOpened,
            RecvError::Mismatch(_) => RecvErrorKind::Mismatch,
            RecvError::Corrupt { .. } => RecvErrorKind::Corrupt,
            RecvError::Memory(_) => RecvErrorKind::Memory,
            RecvError::UsedAfterFork(_) => RecvErrorKind::UsedAfterFork,
            RecvError::Disconnected(_) => RecvErrorKind::Disconnected,
        },
    }
}

fn subject_of(error: &channel::RecvError) -> Option<Subject<'_>> {
    use channel::RecvError;

    match error {
        RecvError::NotOpened(error) => Subject::new(&error.channel, &error.peer),
        RecvError::Mismatch(error) => Subject::new(&error.channel, &error.peer),
        RecvError::Disconnected(error) => Subject::new(&error.channel, &error.peer),
        RecvError::Corrupt { channel, peer, .. } => Subject::new(channel, peer),
        _ => None,
    }
}

impl From<RecvFailure> for RecvError {
    #[inline]
    fn from(failure: RecvFailure) -> Self {
        Self(Failure::Channel(failure))
    }
}

impl From<channel::RecvError> for RecvError {
    #[inline]
    fn from(error: channel::RecvError) -> Self {
        Self(Failure::Channel(RecvFailure::Failed(error)))
    }
}

impl From<OpenError> for RecvError {
    fn from(error: OpenError) -> Self {
        Self(Failure::Opening(error))
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Failure::Channel(failure) => match failure {
                RecvFailure::Empty => f.write_str("no message is there"),
                RecvFailure::NotOpen => f.write_str("the peer has not opened its end yet"),
                RecvFailure::NotOpenInTime(error) => error.fmt(f),
                RecvFailure::TimedOut(error) => error.fmt(f),
                RecvFailure::Failed(error) => error.fmt(f),
            },
            Failure::OfNobody(_, suspended) => write!(
                f,
                "nothing came from any peer within the time-out{}",
                Suspensions(suspended)
            ),
            Failure::Opening(error) => error.fmt(f),
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
    fn a_poll_in_vain_is_transient_and_makes_recv_error_no_larger() {
        assert_eq!(size_of::<RecvError>(), size_of::<channel::RecvError>());
        for failure in [RecvFailure::Empty, RecvFailure::NotOpen] {
            let error = RecvError::from(failure);
            assert!(error.is_transient() && error.spares_channel(), "{error}");
            assert_eq!((error.channel(), error.peer()), (None, None));
        }
        assert!(!RecvError::from(channel::RecvError::Ended).spares_channel());
    }
}
