//! Errors of calls: the application's, those of the way to it, and how much is certain.

use std::fmt;

use ibex_transport::{channel::RecvError, session::Interface};

use crate::{SendError, SendErrorKind};

/// How far a failed call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// No handler got the request, and none will, so it may be sent again.
    NotExecuted,
    /// A handler may have got the request, or may yet get it.
    Unknown,
    /// A handler got it and answered.
    Executed,
}

/// Error of the application: a handler's answer to a call that it could not serve.
///
/// A service with error types of its own makes them part of the reply, as in
/// `peer.caller::<Request, Result<Reply, Refusal>>(..)`. They are then read in place too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (code {code})")]
#[non_exhaustive]
pub struct Failure {
    /// The code that the handler gave. Its meaning is the application's.
    pub code: u32,
    /// Text for people, at most 4 KiB.
    pub text: String,
}

/// Why a request was given to no handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// The call's deadline had passed before a handler could get the request.
    Expired,
    /// The caller has more calls under way than the service takes from one peer.
    Overloaded,
    /// The request's bytes are not valid.
    Invalid,
    /// The service ended before a handler got it.
    Closed,
    /// The handler handed the request back by [`Request::refuse`](crate::calls::Request::refuse).
    ByHandler,
    /// The serving node [drains](crate::Node::drain) and begins no more calls. Send the call to
    /// another node, or again to the node that takes its place.
    Draining,
    /// A reason that this release does not know.
    Other(u16),
}

impl Refused {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Expired => 1,
            Self::Overloaded => 2,
            Self::Invalid => 3,
            Self::Closed => 4,
            Self::ByHandler => 5,
            Self::Draining => 6,
            Self::Other(code) => code,
        }
    }

    pub(super) fn of(code: u16) -> Self {
        match code {
            1 => Self::Expired,
            2 => Self::Overloaded,
            3 => Self::Invalid,
            4 => Self::Closed,
            5 => Self::ByHandler,
            6 => Self::Draining,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str(
                "its deadline passed before a handler got it; call again, with more time",
            ),
            Self::Overloaded => f.write_str(
                "the service takes fewer calls of one peer at a time; lower the caller's \
                 max_in_flight, or raise the service's",
            ),
            Self::Invalid => f.write_str(
                "the service found its bytes not valid; see that both programs have the same codec",
            ),
            Self::Closed => f.write_str(
                "the service ended before a handler got it; make the caller anew, in another \
                 session if this one has ended, and call again",
            ),
            Self::ByHandler => f.write_str("the handler handed it back; call again later"),
            Self::Draining => f.write_str(
                "its node drains and begins no call any more; send it to another node, or again \
                 after the restart",
            ),
            Self::Other(code) => write!(
                f,
                "reason {code}, which this release does not know; update this program, or call \
                 again later"
            ),
        }
    }
}

/// A call got no reply.
///
/// [`execution`](Self::execution) says how much is certain about the handler.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The handler answered with an error of the application.
    #[error("service \"{service}\" of {peer} failed the call: {failure}")]
    #[non_exhaustive]
    Failed {
        /// The service's name.
        service: String,
        /// The peer, as an address.
        peer: String,
        /// The failure that the handler reported.
        failure: Failure,
    },
    /// The request did not go out, so it was not executed.
    #[error(
        "the request was not sent, and so not executed: {_0}{}",
        match _0.kind() {
            SendErrorKind::Disconnected => ", and call again",
            _ => "",
        }
    )]
    NotSent(SendError),
    /// No handler got the request, as the service said.
    #[error("service \"{service}\" of {peer} did not execute the call: {reason}")]
    #[non_exhaustive]
    Refused {
        /// The service's name.
        service: String,
        /// The peer, as an address.
        peer: String,
        /// Why.
        reason: Refused,
    },
    /// The deadline passed. The handler is told.
    #[error(
        "service \"{service}\" of {peer} did not answer before the call's deadline; {}",
        match (.is_sent, .is_open) {
            (true, _) => MAY_BE_EXECUTED,
            (false, true) => "the request was not sent, and so not executed: as many calls are \
                              under way as may be, or those before it leave no room; call again \
                              later, or raise max_in_flight or window_bytes at both nodes",
            (false, false) => "the request was not sent, and so not executed: the peer has not \
                               opened a service of this name; see that it does, that both \
                               programs use one name, and that the service is asked for its \
                               next request",
        }
    )]
    #[non_exhaustive]
    DeadlineExceeded {
        /// The service's name.
        service: String,
        /// The peer, as an address.
        peer: String,
        /// True if the request was sent.
        is_sent: bool,
        /// True if the peer had opened the service.
        is_open: bool,
    },
    /// The handler dropped the request without an answer, for example by a panic.
    #[error(
        "service \"{service}\" of {peer}: the handler dropped the request without an answer; \
         {MAY_BE_EXECUTED}"
    )]
    #[non_exhaustive]
    Unanswered {
        /// The service's name.
        service: String,
        /// The peer, as an address.
        peer: String,
    },
    /// The service or its session ended before the answer came.
    #[error("the call got no answer: {why}; {MAY_BE_EXECUTED}")]
    #[non_exhaustive]
    Lost {
        /// The service's name.
        service: String,
        /// The peer, as an address.
        peer: String,
        /// Which service ended, by what, and how to have another.
        why: String,
    },
    /// The reply's bytes are not valid.
    #[error(
        "service \"{service}\" of {peer}: the reply is not valid: {why}; the handler has executed \
         the call; see what that peer's codec writes"
    )]
    #[non_exhaustive]
    InvalidReply {
        /// The service's name.
        service: String,
        /// The peer, as an address.
        peer: String,
        /// The codec's reason.
        why: String,
    },
}

impl CallError {
    /// Returns how far the call came, as far as that is certain.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match self {
            Self::NotSent(_)
            | Self::Refused { .. }
            | Self::DeadlineExceeded { is_sent: false, .. } => Execution::NotExecuted,
            Self::DeadlineExceeded { .. } | Self::Unanswered { .. } | Self::Lost { .. } => {
                Execution::Unknown
            }
            Self::Failed { .. } | Self::InvalidReply { .. } => Execution::Executed,
        }
    }

    /// Returns the failure that the handler reported, if the application failed the call.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// Combines the error of a call's last attempt with that of earlier attempts. If a handler may
    /// have executed one of those, it does not matter that it certainly did not execute the last.
    pub(super) fn behind(self, before: Option<Self>) -> Self {
        match before {
            Some(before)
                if self.execution() == Execution::NotExecuted
                    && before.execution() != Execution::NotExecuted =>
            {
                before
            }
            _ => self,
        }
    }

    /// Returns whether another attempt may succeed where this one did not: the session lives, and
    /// the handler was lost or handed the request back.
    pub(super) fn is_worth_another(&self) -> bool {
        matches!(
            self,
            Self::Unanswered { .. }
                | Self::Refused {
                    reason: Refused::ByHandler,
                    ..
                }
        )
    }
}

/// An answer did not go out.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The answer is no longer waited for: the caller cancelled the call or is gone, or the
    /// deadline has passed.
    #[error(
        "the caller does not wait any more: it cancelled the call, its deadline passed, or it is gone"
    )]
    Cancelled,
    /// More than one reply was to be sent to a call that takes one.
    #[error("the call takes one reply and no stream; answer it with `reply`")]
    NotAStream,
    /// The channel of replies did not take the reply. The caller hears that there is no answer.
    #[error("the answer was not sent: {0}")]
    NotSent(SendError),
}

/// Why no more replies come over a channel.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// The service has answered every call that it had begun, and begins no more.
    Drained,
    /// The channel has ended, as the text says.
    Lost(String),
}

impl Over {
    /// Makes a call's error of an error in receiving the replies of that peer's service.
    pub(super) fn of(error: &RecvError, service: &str, peer: &str) -> Self {
        Self::Lost(match error {
            RecvError::Ended => format!(
                "{} has ended: the peer dropped it; make the caller anew, in another session if \
                 this one has ended",
                Interface::Caller.subject(service, peer)
            ),
            other => other.to_string(),
        })
    }
}

ibex_base::debug_as_display!(CallError, AnswerError);

/// Returns consequence and advice where [`Execution::Unknown`] is all that is certain.
const MAY_BE_EXECUTED: &str = "a handler may have executed the call: call again only if it may be \
                               executed twice";

/// The longest text of a failure; what is longer is cut.
pub(super) const MAX_FAILURE_BYTES: usize = 4096;
