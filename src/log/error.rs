//! Errors of log senders.

use std::error::Error;

use ibex_protocol::format::control::CloseReason;
use ibex_transport::{
    channel::SendFailure,
    session::{Disconnected, EndCause},
};

use crate::{SendError, Sequence};

/// A log was not sent to its end, or is not acknowledged up to a position. Messages that were sent
/// stay sent, and the next call goes on behind them.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The program's [`LogSource`](crate::log::LogSource) failed: it has no answer of the far end,
    /// or not the message that comes next. The next call asks it again. A failure that came with
    /// the end of the session is not reported, because the far end is asked in the next session.
    #[error("the log's source failed: {0}; the next call asks it again")]
    Source(Box<dyn Error + Send + Sync>),
    /// The far end's answer is a position that the log does not reach.
    #[error(
        "{peer} is said to have the log up to position {position}, and here it ends at {end}: one \
         of them is another log, or this one lost its end; have the source answer a position that \
         both have, 0 for everything anew"
    )]
    #[non_exhaustive]
    Ahead {
        /// The far end.
        peer: String,
        /// The position of its answer.
        position: Sequence,
        /// The log's end.
        end: Sequence,
    },
    /// There is no session now. The program has to give the log sender the next one.
    #[error("the log sender has no session with its far end: {why}")]
    #[non_exhaustive]
    NoSession {
        /// The end of the last one.
        why: String,
    },
    /// The caller's time was up.
    #[error(
        "the log is sent up to position {position} of {end} within the time-out: {why}; a later \
         call goes on from there"
    )]
    #[non_exhaustive]
    Timeout {
        /// The log was sent up to here.
        position: Sequence,
        /// The log's end.
        end: Sequence,
        /// The obstacle that the call waited to pass.
        why: String,
    },
    /// A message cannot be sent, or the channel has ended for a reason on this side.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The log does not reach the position that was to be waited for.
    #[error("position {position} is waited for, and the log ends at {end}: append to it first")]
    #[non_exhaustive]
    Beyond {
        /// The position that was asked for.
        position: Sequence,
        /// The log's end.
        end: Sequence,
    },
}

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
    pub(super) fn of(end: &Disconnected) -> Self {
        match end.cause {
            EndCause::PeerClosed(CloseReason::Dropped) => Ended::Channel,
            EndCause::Goodbye
            | EndCause::PeerGone { .. }
            | EndCause::DeviceLost { .. }
            | EndCause::Refused { .. } => Ended::Session,
            _ => Ended::ForGood,
        }
    }
}

/// The words of an attempt that did not send, if later ones may.
pub(super) fn why_not_yet(failure: SendFailure) -> Result<String, SendError> {
    match failure {
        SendFailure::Failed(error) => Err(error.into()),
        SendFailure::TimedOut(full) => Ok(full.to_string()),
        SendFailure::NotOpenInTime(missing) => Ok(missing.to_string()),
        SendFailure::Full => Ok("the channel is full".to_owned()),
        SendFailure::NotOpen => Ok("the peer has not opened its end yet".to_owned()),
    }
}

ibex_base::debug_as_display!(LogError);
