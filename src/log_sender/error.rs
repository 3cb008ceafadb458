//! Errors of log senders.

use std::error::Error;

use ibex_transport::channel::{SendError, SendFailure};

use crate::Sequence;

/// A log was not sent to its end, or is not acknowledged up to a position. What was sent stays
/// sent, and the next call goes on behind it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The program's [`LogSource`](crate::LogSource) failed: it has no answer of the far end, or
    /// not the message that comes next. The next call asks it again.
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
    /// There is no session, and the log sender waits for none: the program gives it the next one.
    #[error(
        "the log sender has no session with its far end: once there is one, give it to `go_on_with`"
    )]
    NoSession,
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
    /// A message cannot be sent, or the channel has ended and no session follows.
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

/// The words of an attempt that did not send, if later ones may.
pub(super) fn why_not_yet(failure: SendFailure) -> Result<String, SendError> {
    match failure {
        SendFailure::Failed(error) => Err(error),
        SendFailure::TimedOut(full) => Ok(full.to_string()),
        SendFailure::NotOpenInTime(missing) => Ok(missing.to_string()),
        SendFailure::Full => Ok("the channel is full".to_owned()),
        SendFailure::NotOpen => Ok("the peer has not opened its end yet".to_owned()),
    }
}

ibex_transport::debug_as_display!(LogError);
