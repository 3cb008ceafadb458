//! Errors of calls: the application's, those of the way to it, and how much is certain.

use std::{fmt, sync::Arc};

use ibex_transport::channel::ChannelError;

use crate::{RecvError, SendError, SendErrorKind, Suspension, error::Interface};

/// The progress of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// No handler got the request, and none will, so it may be sent again.
    NotExecuted,
    /// A handler may have got the request, or may yet get it.
    Unknown,
    /// A handler got it and answered.
    Executed,
}

/// The reason for which a request was given to no handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Refused {
    /// The call's deadline had passed before a handler could get the request.
    Expired,
    /// The caller has more calls under way than the service takes from one peer.
    Overloaded,
    /// The request's bytes are not valid.
    Invalid,
    /// The service ended before a handler got it.
    Closed,
    /// The handler handed the request back.
    ByHandler,
    /// The serving node drains and begins no more calls.
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

    fn kind(self) -> CallErrorKind {
        match self {
            Self::Expired => CallErrorKind::DeadlineExceeded,
            Self::Overloaded => CallErrorKind::Overloaded,
            Self::Invalid => CallErrorKind::InvalidRequest,
            Self::Closed => CallErrorKind::ServiceEnded,
            Self::ByHandler => CallErrorKind::HandedBack,
            Self::Draining => CallErrorKind::Draining,
            Self::Other(_) => CallErrorKind::Refused,
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

/// The error of a call: no reply, or not all of a stream.
///
/// Its text names the service and the peer, and says what happened and whether to call again.
/// [`execution`](Self::execution) says how much is certain about the handler, and
/// [`kind`](Self::kind) is for programs that decide by it.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use ibex::calls::{CallError, CallErrorKind, Caller};
///
/// /// Looks a price up, unless the service knows no such symbol.
/// fn price(quotes: &Caller<String, u64>, symbol: &String) -> Result<Option<u64>, CallError> {
///     match quotes.call(symbol) {
///         Ok(price) => Ok(Some(price.to_native())),
///         Err(error) if error.kind() == CallErrorKind::Failed => Ok(None),
///         Err(error) => Err(error),
///     }
/// }
/// # }
/// ```
///
/// | kind | was it executed | what helps |
/// |---|---|---|
/// | [`Failed`](CallErrorKind::Failed) | yes | the handler's [code and text](CallError::failure) |
/// | [`NotSent`](CallErrorKind::NotSent) | no | as the [error of sending](CallError::send_error) says |
/// | [`Overloaded`](CallErrorKind::Overloaded) | no | a lower `max_in_flight` of the caller, or a higher one of the service |
/// | [`HandedBack`](CallErrorKind::HandedBack) | no | a later call |
/// | [`Draining`](CallErrorKind::Draining) | no | another node, or the one that takes its place |
/// | [`ServiceEnded`](CallErrorKind::ServiceEnded) | no | another caller, in another session if this one has ended |
/// | [`InvalidRequest`](CallErrorKind::InvalidRequest) | no | one codec in both programs |
/// | [`Refused`](CallErrorKind::Refused) | no | a newer release of this program, or a later call |
/// | [`DeadlineExceeded`](CallErrorKind::DeadlineExceeded) | unknown; no, if it was not sent or no handler had got it | more time |
/// | [`Suspended`](CallErrorKind::Suspended) | no | another node, or a later call |
/// | [`Unanswered`](CallErrorKind::Unanswered) | unknown | [`idempotent`](crate::calls::CallOptions::idempotent), if it may be executed twice |
/// | [`Lost`](CallErrorKind::Lost) | unknown | another caller, if it may be executed twice |
/// | [`InvalidReply`](CallErrorKind::InvalidReply) | yes | a look at what that peer's codec writes |
pub struct CallError(Box<CallFailure>);

/// The kinds of a [`CallError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallErrorKind {
    /// The handler answered with an error of the application, by
    /// [`Request::fail`](crate::calls::Request::fail).
    Failed,
    /// The request did not go out.
    NotSent,
    /// The deadline passed. A handler that has the request is told.
    DeadlineExceeded,
    /// The session has no connection, and the call is one that [fails
    /// then](crate::calls::CallOptions::fail_while_suspended).
    Suspended,
    /// The caller has more calls under way than the service takes from one peer.
    Overloaded,
    /// The service found the request's bytes not valid.
    InvalidRequest,
    /// The service ended before a handler got the request.
    ServiceEnded,
    /// The handler handed the request back by [`Request::refuse`](crate::calls::Request::refuse).
    HandedBack,
    /// The serving node [drains](crate::Node::drain) and begins no more calls. Send the call to
    /// another node, or again to the node that takes its place.
    Draining,
    /// The service gave the request to no handler, for a reason that this release does not know.
    Refused,
    /// The handler dropped the request without an answer, for example by a panic.
    Unanswered,
    /// The service or its session ended before the answer came.
    Lost,
    /// The reply's bytes are not valid.
    InvalidReply,
}

/// The failure that ended a call.
#[derive(thiserror::Error)]
pub(super) enum CallFailure {
    /// The handler answered with an error of the application.
    #[error(
        "service \"{service}\" of {peer} failed the call: {} (code {code})",
        ibex_base::Escaped(text)
    )]
    Failed {
        service: String,
        peer: String,
        code: u32,
        text: String,
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
    Refused {
        service: String,
        peer: String,
        reason: Refused,
    },
    /// The deadline passed. The handler is told.
    #[error(
        "service \"{service}\" of {peer} did not answer before the call's deadline{}; {}",
        cut_off(.suspended.as_deref()),
        match (.is_sent, .is_open) {
            (true, _) => MAY_BE_EXECUTED,
            (false, _) if .suspended.is_some() => "the request was not sent, and so not executed; \
                                                   call again later",
            (false, true) => "the request was not sent, and so not executed: as many calls are \
                              under way as may be, or those before it leave no room; see that \
                              the process there runs, is not stopped, and asks its service for \
                              the next request, and call again later; a greater max_in_flight or \
                              window_bytes helps only a service that keeps up",
            (false, false) => "the request was not sent, and so not executed: the peer has not \
                               opened a service of this name; see that it does, that both \
                               programs use one name, and that the service is asked for its \
                               next request",
        }
    )]
    DeadlineExceeded {
        service: String,
        peer: String,
        is_sent: bool,
        /// True if the peer had opened the service.
        is_open: bool,
        /// The suspension of the session, if it has no connection.
        suspended: Option<Arc<Suspension>>,
    },
    /// The session has no connection, and the call does not wait for one.
    #[error(
        "service \"{service}\" of {peer}: the call was not sent, and so not executed: {suspended}; \
         call again later, or another node"
    )]
    Suspended {
        service: String,
        peer: String,
        suspended: Arc<Suspension>,
    },
    /// The handler dropped the request without an answer, for example by a panic.
    #[error(
        "service \"{service}\" of {peer}: the handler dropped the request without an answer; \
         {MAY_BE_EXECUTED}"
    )]
    Unanswered { service: String, peer: String },
    /// The service or its session ended before the answer came.
    #[error("the call got no answer: {why}; {MAY_BE_EXECUTED}")]
    Lost {
        service: String,
        peer: String,
        /// The service that ended, by what, and how to have another.
        why: String,
    },
    /// The reply's bytes are not valid.
    #[error(
        "service \"{service}\" of {peer}: the reply is not valid: {why}; the handler has executed \
         the call; see what that peer's codec writes"
    )]
    InvalidReply {
        service: String,
        peer: String,
        /// The codec's reason.
        why: String,
    },
}

impl CallError {
    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> CallErrorKind {
        match &*self.0 {
            CallFailure::Failed { .. } => CallErrorKind::Failed,
            CallFailure::NotSent(_) => CallErrorKind::NotSent,
            CallFailure::Refused { reason, .. } => reason.kind(),
            CallFailure::DeadlineExceeded { .. } => CallErrorKind::DeadlineExceeded,
            CallFailure::Suspended { .. } => CallErrorKind::Suspended,
            CallFailure::Unanswered { .. } => CallErrorKind::Unanswered,
            CallFailure::Lost { .. } => CallErrorKind::Lost,
            CallFailure::InvalidReply { .. } => CallErrorKind::InvalidReply,
        }
    }

    /// Returns how far the call came, as far as that is certain.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match &*self.0 {
            CallFailure::NotSent(_)
            | CallFailure::Refused { .. }
            | CallFailure::Suspended { .. }
            | CallFailure::DeadlineExceeded { is_sent: false, .. } => Execution::NotExecuted,
            CallFailure::DeadlineExceeded { .. }
            | CallFailure::Unanswered { .. }
            | CallFailure::Lost { .. } => Execution::Unknown,
            CallFailure::Failed { .. } | CallFailure::InvalidReply { .. } => Execution::Executed,
        }
    }

    /// Returns the service's name, where the error has it.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        match &*self.0 {
            CallFailure::NotSent(error) => error.channel(),
            CallFailure::Failed { service, .. }
            | CallFailure::Refused { service, .. }
            | CallFailure::DeadlineExceeded { service, .. }
            | CallFailure::Suspended { service, .. }
            | CallFailure::Unanswered { service, .. }
            | CallFailure::Lost { service, .. }
            | CallFailure::InvalidReply { service, .. } => Some(service),
        }
    }

    /// Returns the peer as an address, where the error has it.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        match &*self.0 {
            CallFailure::NotSent(error) => error.peer(),
            CallFailure::Failed { peer, .. }
            | CallFailure::Refused { peer, .. }
            | CallFailure::DeadlineExceeded { peer, .. }
            | CallFailure::Suspended { peer, .. }
            | CallFailure::Unanswered { peer, .. }
            | CallFailure::Lost { peer, .. }
            | CallFailure::InvalidReply { peer, .. } => Some(peer),
        }
    }

    /// Returns the code and the text that the handler [failed](crate::calls::Request::fail) the
    /// call with. The code's meaning is the application's, and the text has at most 4 KiB.
    ///
    /// A service with error types of its own makes them part of the reply, as in
    /// `peer.caller::<Request, Result<Reply, Refusal>>(..)`. They are then read in place too.
    #[must_use]
    pub fn failure(&self) -> Option<(u32, &str)> {
        match &*self.0 {
            CallFailure::Failed { code, text, .. } => Some((*code, text)),
            _ => None,
        }
    }

    /// Returns the suspension of the session, if the call had no chance because the session has no
    /// connection, or one over which the peer's host is silent: since when, why, and what this node
    /// does about it. The service is not to blame then.
    #[must_use]
    pub fn suspended(&self) -> Option<&Suspension> {
        match &*self.0 {
            CallFailure::DeadlineExceeded { suspended, .. } => suspended.as_deref(),
            CallFailure::Suspended { suspended, .. } => Some(suspended),
            CallFailure::NotSent(error) => error.suspended(),
            _ => None,
        }
    }

    /// Returns the error of sending, if the request did not go out.
    #[must_use]
    pub fn send_error(&self) -> Option<&SendError> {
        match &*self.0 {
            CallFailure::NotSent(error) => Some(error),
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
        let kind = self.kind();
        matches!(kind, CallErrorKind::Unanswered | CallErrorKind::HandedBack)
    }
}

impl From<CallFailure> for CallError {
    fn from(failure: CallFailure) -> Self {
        Self(Box::new(failure))
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for CallError {}

/// The reason for which no more replies come over a channel.
#[derive(Clone, Debug)]
pub(super) enum RepliesOver {
    /// The service has answered every call that it had begun, and begins no more.
    Drained,
    /// The channel has ended, as the text says.
    Lost(String),
}

impl RepliesOver {
    /// Makes a call's error of an error in receiving the replies of that peer's service.
    pub(super) fn of(error: ChannelError, service: &str, peer: &str) -> Self {
        Self::Lost(match error {
            ChannelError::Ended => format!(
                "{} has ended: the peer dropped it; make the caller anew, in another session if \
                 this one has ended",
                Interface::Caller.subject(service, peer)
            ),
            other => RecvError::from(other).to_string(),
        })
    }
}

ibex_base::debug_as_display!(CallError, CallFailure);

/// Returns what kept the answer of a call away, if it was not the service.
fn cut_off(suspended: Option<&Suspension>) -> String {
    suspended.map_or_else(String::new, |suspended| format!(": {suspended}"))
}

/// Returns consequence and advice where [`Execution::Unknown`] is all that is certain.
const MAY_BE_EXECUTED: &str = "a handler may have executed the call: call again only if it may be \
                               executed twice";

/// The longest text of a failure; what is longer is cut.
pub(super) const MAX_FAILURE_BYTES: usize = 4096;
