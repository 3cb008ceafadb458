//! Errors of log senders.

use std::error::Error;

use ibex_calls::CallError;
use ibex_core::{CloseReason, EndCause, OpenError, RecvError, SendError, SendErrorKind, WaitError};

/// The error of a call of a [`LogSender`](crate::LogSender) or a
/// [`LogGroup`](crate::LogGroup): the log was not sent to its end, or is not acknowledged up
/// to a position.
///
/// Messages that were sent stay sent, and the next call goes on behind them. The text says how far
/// it came, what stands in the way and what to do; [`kind`](Self::kind) is for programs that
/// decide by it.
///
/// | kind | what helps |
/// |---|---|
/// | [`Source`](LogErrorKind::Source) | a later call, which asks the program's source again; in a group, to join again |
/// | [`Ahead`](LogErrorKind::Ahead) | a source that answers a position which both ends have |
/// | [`NoSession`](LogErrorKind::NoSession) | another session for the log sender |
/// | [`Timeout`](LogErrorKind::Timeout) | a later call, which goes on from where this one came to |
/// | [`Send`](LogErrorKind::Send) | as the [error of sending](LogError::send_error) says |
/// | [`Beyond`](LogErrorKind::Beyond) | a log that reaches the position |
/// | [`NoQuorum`](LogErrorKind::NoQuorum) | more members, or a smaller quorum |
#[derive(thiserror::Error)]
#[error("{_0}")]
pub struct LogError(Box<LogFailure>);

/// The kinds of a [`LogError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogErrorKind {
    /// The program's [`LogSource`](crate::LogSource) failed: it has no answer of the far end,
    /// or not the message that comes next. The next call of a log sender asks it again. A group
    /// asks again by itself where a call or a channel failed; it loses a member for which the source
    /// has another error. A failure that came with the end of the session is not reported, because
    /// the far end is asked in the next session.
    Source,
    /// The far end's answer, or what was sent to it, is a position that the log does not reach.
    Ahead,
    /// There is no session now. The program has to give the log sender, or members of the group,
    /// the next one.
    NoSession,
    /// The caller's time was up.
    Timeout,
    /// A message cannot be sent, or the channel has ended for a reason on this side.
    Send,
    /// The log does not reach the position that was to be waited for.
    Beyond,
    /// The group has fewer members than the quorum needs.
    NoQuorum,
}

/// The failure of a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogFailure {
    /// The program's source failed.
    #[error(
        "the log's source failed: {0}; the next call asks it again, in a group once the member has \
         joined again"
    )]
    Source(Box<dyn Error + Send + Sync>),
    /// The far end's answer is a position that the log does not reach.
    #[error(
        "{peer} is said to have the log up to position {position}, and here it ends at {end}: one \
         of them is another log, or this one lost its end; have the source answer a position that \
         both have, 0 for everything anew"
    )]
    Ahead {
        /// The far end.
        peer: String,
        /// The position of its answer.
        position: u64,
        /// The log's end.
        end: u64,
    },
    /// The log ends before what was sent.
    #[error(
        "{peer} was sent the log up to position {position}, and now it ends at {end}: a log only \
         grows; after a cut, have the source answer a position that both have"
    )]
    Shortened {
        /// The far end.
        peer: String,
        /// The log was sent up to here.
        position: u64,
        /// The log's end.
        end: u64,
    },
    /// There is no session now.
    #[error("the log sender has no session with its far end: {why}")]
    NoSession {
        /// The end of the last one.
        why: String,
    },
    /// The caller's time was up.
    #[error(
        "the log is sent up to position {position} of {end} within the time-out: {why}; a later \
         call goes on from there"
    )]
    Timeout {
        /// The log was sent up to here.
        position: u64,
        /// The log's end.
        end: u64,
        /// The obstacle that the call waited to pass.
        why: String,
    },
    /// A message cannot be sent, or the channel has ended for a reason on this side.
    #[error(transparent)]
    Send(SendError),
    /// The log does not reach the position that was to be waited for.
    #[error("position {position} is waited for, and the log ends at {end}: append to it first")]
    Beyond {
        /// The position that was asked for.
        position: u64,
        /// The log's end.
        end: u64,
    },
    /// A group has fewer members than the quorum needs.
    #[error(
        "{quorum} members are to acknowledge position {position}, and there are {members}{lost}; \
         have more join, or wait for fewer"
    )]
    NoQuorum {
        /// The members that were to acknowledge the position.
        quorum: usize,
        /// The position that was asked for.
        position: u64,
        /// The number of members, and descriptions of them.
        members: String,
        /// The loss of the last one that was lost, if any was.
        lost: String,
    },
    /// The quorum depends on members that the program has to give their sessions.
    #[error(
        "{quorum} members are to acknowledge position {position}, and too few of them have a \
         session: {members}{lost}"
    )]
    NoSessions {
        /// The members that were to acknowledge the position.
        quorum: usize,
        /// The position that was asked for.
        position: u64,
        /// Descriptions of the members.
        members: String,
        /// The loss of the last one that was lost, if any was.
        lost: String,
    },
    /// The caller's time was up before the quorum was reached.
    #[error(
        "a quorum of {quorum} has acknowledged up to position {acked} of {position} within the \
         time-out: {members}{lost}; a later call goes on from there"
    )]
    NotAcked {
        /// The members that were to acknowledge the position.
        quorum: usize,
        /// The position that was asked for.
        position: u64,
        /// So many members have acknowledged up to here.
        acked: u64,
        /// Descriptions of the members.
        members: String,
        /// The loss of the last one that was lost, if any was.
        lost: String,
    },
}

impl LogError {
    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> LogErrorKind {
        match &*self.0 {
            LogFailure::Source(_) => LogErrorKind::Source,
            LogFailure::Ahead { .. } | LogFailure::Shortened { .. } => LogErrorKind::Ahead,
            LogFailure::NoSession { .. } | LogFailure::NoSessions { .. } => LogErrorKind::NoSession,
            LogFailure::Timeout { .. } | LogFailure::NotAcked { .. } => LogErrorKind::Timeout,
            LogFailure::NoQuorum { .. } => LogErrorKind::NoQuorum,
            LogFailure::Send(_) => LogErrorKind::Send,
            LogFailure::Beyond { .. } => LogErrorKind::Beyond,
        }
    }

    /// Returns whether a later call may succeed without a change of anything: the caller's time was
    /// up.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind() == LogErrorKind::Timeout
    }

    /// Returns the position that the error is about: up to which the log was sent, or acknowledged
    /// by a quorum, when the time was up; that the far end answered; or that was to be waited for.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        match &*self.0 {
            LogFailure::NotAcked { acked, .. } => Some(*acked),
            LogFailure::NoQuorum { position, .. } | LogFailure::NoSessions { position, .. } => {
                Some(*position)
            }
            _ => self.place().map(|(position, _)| position),
        }
    }

    /// Returns the log's end, where the error of a log sender has a [`position`](Self::position).
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.place().map(|(_, end)| end)
    }

    /// Returns the far end that is ahead of the log.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        match &*self.0 {
            LogFailure::Ahead { peer, .. } | LogFailure::Shortened { peer, .. } => Some(peer),
            _ => None,
        }
    }

    /// Returns the error of the program's [`LogSource`](crate::LogSource).
    #[must_use]
    pub fn source_error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match &*self.0 {
            LogFailure::Source(error) => Some(&**error),
            _ => None,
        }
    }

    /// Returns the error of sending, if a message could not be sent.
    #[must_use]
    pub fn send_error(&self) -> Option<&SendError> {
        match &*self.0 {
            LogFailure::Send(error) => Some(error),
            _ => None,
        }
    }

    /// Returns whether the message that comes next cannot be sent to any far end.
    pub(super) fn is_of_message(&self) -> bool {
        use SendErrorKind::{Encode, Nested, TooLong, Unreadable};
        let kind = self.send_error().map(SendError::kind);
        matches!(kind, Some(TooLong | Encode | Unreadable | Nested))
    }

    /// Returns the text of a source's error that is one of ibex's own: a call or a channel failed, so
    /// there is no answer of the far end. Any other error is the program's word.
    pub(super) fn unanswered(&self) -> Option<String> {
        let LogFailure::Source(error) = &*self.0 else {
            return None;
        };
        let is_of_ibex = error.is::<CallError>()
            || error.is::<OpenError>()
            || error.is::<RecvError>()
            || error.is::<SendError>()
            || error.is::<WaitError>();
        is_of_ibex.then(|| error.to_string())
    }

    /// Returns a position and the log's end.
    fn place(&self) -> Option<(u64, u64)> {
        match &*self.0 {
            LogFailure::Ahead { position, end, .. }
            | LogFailure::Shortened { position, end, .. }
            | LogFailure::Timeout { position, end, .. }
            | LogFailure::Beyond { position, end } => Some((*position, *end)),
            _ => None,
        }
    }
}

impl From<LogFailure> for LogError {
    fn from(failure: LogFailure) -> Self {
        Self(Box::new(failure))
    }
}

impl From<SendError> for LogError {
    fn from(error: SendError) -> Self {
        LogFailure::Send(error).into()
    }
}

ibex_core::extend::debug_as_display!(LogError);

/// The extent of a channel's end.
pub(super) enum Ended {
    /// The receiver was dropped, as it is before a process ends. The end of the session follows, or
    /// another receiver.
    Channel,
    Session,
    /// The node, or what a restart of the peer does not mend.
    ForGood,
}

impl Ended {
    pub(super) fn of(cause: &EndCause) -> Self {
        match cause {
            EndCause::PeerClosed(CloseReason::Dropped) => Ended::Channel,
            EndCause::Goodbye
            | EndCause::EndedByPeer { .. }
            | EndCause::EndedHere { .. }
            | EndCause::PeerGone { .. }
            | EndCause::DeviceLost { .. }
            | EndCause::Refused { .. } => Ended::Session,
            _ => Ended::ForGood,
        }
    }
}
