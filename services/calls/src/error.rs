//! Errors of calls: the application's, those of the way to it, and how much is certain.

pub(super) mod answers;
pub(super) mod label;
mod refused;

use std::{fmt, sync::Arc};

use ibex_core::{
    CloseReason, EndCause, OpenError, RecvError, SendError, SendErrorKind, Suspension,
    extend::ChannelError,
};

use crate::no_reply::{MAY_BE_EXECUTED, NoReply};

pub(super) use self::refused::Refused;

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
/// | [`NotSent`](CallErrorKind::NotSent) | no | as the [error of sending](CallError::send_error) or [of opening](CallError::open_error) says |
/// | [`NoSession`](CallErrorKind::NoSession) | no | another [`PeersCaller`](crate::PeersCaller), of peers that are kept |
/// | [`Overloaded`](CallErrorKind::Overloaded) | no | a lower `max_in_flight` of the caller, or a higher one of the service |
/// | [`HandedBack`](CallErrorKind::HandedBack) | no | a later call |
/// | [`Draining`](CallErrorKind::Draining) | no | another node, or the one that takes its place |
/// | [`ServiceEnded`](CallErrorKind::ServiceEnded) | no | another caller, in another session if this one has ended |
/// | [`InvalidRequest`](CallErrorKind::InvalidRequest) | no | one codec in both programs |
/// | [`Refused`](CallErrorKind::Refused) | no | a newer release of this program, or a later call |
/// | [`DeadlineExceeded`](CallErrorKind::DeadlineExceeded) | unknown; no, if it was not sent or no handler had got it | more time |
/// | [`Suspended`](CallErrorKind::Suspended) | no | another node, or a later call |
/// | [`Unanswered`](CallErrorKind::Unanswered) | unknown | [`idempotent`](crate::CallOptions::idempotent), if it may be executed twice |
/// | [`ReplyTooLong`](CallErrorKind::ReplyTooLong) | yes | a higher `max_message_bytes` at both ends, or a stream of shorter items |
/// | [`ReplyNotEncoded`](CallErrorKind::ReplyNotEncoded) | yes | a reply that its codec takes |
/// | [`Lost`](CallErrorKind::Lost) | unknown | another caller, if it may be executed twice |
/// | [`InvalidReply`](CallErrorKind::InvalidReply) | yes | a look at what that peer's codec writes |
pub struct CallError(Box<FailedCall>);

/// The kinds of a [`CallError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallErrorKind {
    /// The handler answered with an error of the application, by
    /// [`Request::fail`](crate::Request::fail) or
    /// [`HandlerError::Failed`](crate::HandlerError::Failed).
    Failed,
    /// The request did not go out.
    NotSent,
    /// No peers are kept connected any more, for a call of a
    /// [`PeersCaller`](crate::PeersCaller): its [`Peers`](ibex_peers::discovery::Peers) were
    /// dropped or the node was closed, or the process is a fork.
    NoSession,
    /// The deadline passed. A handler that has the request is notified.
    DeadlineExceeded,
    /// The session has no connection, and the call is one that [fails
    /// then](crate::CallOptions::fail_while_suspended), or one of a
    /// [`PeersCaller`](crate::PeersCaller) whose retry budget was empty when another peer
    /// could have been called.
    Suspended,
    /// The caller has more calls under way than the service takes from one peer, or the service has so
    /// many that it could not answer this one before its deadline.
    Overloaded,
    /// The service found the request's bytes not valid.
    InvalidRequest,
    /// The service ended before a handler got the request.
    ServiceEnded,
    /// The handler handed the request back, by [`Request::refuse`](crate::Request::refuse) or
    /// [`HandlerError::HandedBack`](crate::HandlerError::HandedBack), or the service is stopped.
    HandedBack,
    /// The serving node [drains](ibex_core::Node::drain) and begins no more calls. Send the call to
    /// another node, or again to the node that takes its place.
    Draining,
    /// The service gave the request to no handler, for a reason that this release does not know.
    Refused,
    /// The handler dropped the request without an answer, for example by a panic.
    Unanswered,
    /// The handler's reply, or an item of a stream, is above
    /// [`max_message_bytes`](ibex_core::ChannelBuilder::max_message_bytes), the smaller value of both
    /// ends. The call is not sent again. [`CallError::length`] and [`CallError::limit`] say by how much.
    ReplyTooLong,
    /// The service's codec refused the handler's reply. The call is not sent again.
    ReplyNotEncoded,
    /// The service or its session ended before the answer came, or the service gave this caller up
    /// because it took no replies.
    Lost,
    /// The reply's bytes are not valid.
    InvalidReply,
}

struct FailedCall {
    service: String,
    peer: String,
    failure: CallFailure,
    /// The call would have been tried again, but for this.
    out_of_retries: Option<OutOfRetries>,
}

/// The reason for which a call failed. Its text follows the names of service and peer, unless it
/// has a subject of its own.
#[derive(thiserror::Error)]
pub(super) enum CallFailure {
    /// The handler answered with an error of the application.
    #[error(" failed the call: {} (code {code})", ibex_core::extend::Escaped(text))]
    Failed { code: u32, text: String },
    /// The request did not go out, so it was not executed.
    #[error(
        "the request was not sent, and so not executed: {_0}{}",
        match _0.kind() {
            SendErrorKind::Disconnected => ", and call again",
            _ => "",
        }
    )]
    NotSent(SendError),
    /// The caller could not be opened in the session that was chosen for the call.
    #[error("the request was not sent, and so not executed: {_0}")]
    CannotOpen(OpenError),
    /// Until the deadline, no kept peer took the call, as the text says.
    #[error(
        ": no peer took the call before its deadline, so it was not executed: of these peers {_0}; \
         see that they run and are reached, and call again later"
    )]
    NoPeer(String),
    /// The peers are not kept any more.
    #[error(
        ": the call was not sent, and so not executed: the peers are not kept connected any more, \
         because their `Peers` were dropped, the node was closed or this process is a fork"
    )]
    NoSession,
    /// No handler got the request, as the service said.
    #[error(" did not execute the call: {_0}")]
    Refused(Refused),
    /// The deadline passed. The handler is notified.
    #[error(
        " did not answer before the call's deadline{}; {}",
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
            (false, false) => "the request was not sent, and so not executed: no service of the \
                               peer has met this caller; see that the peer opens one of this \
                               name, and that somebody there asks it for its next request, which \
                               nobody does while all handlers are busy",
        }
    )]
    DeadlineExceeded {
        is_sent: bool,
        /// True if the peer had opened the service.
        is_open: bool,
        /// The suspension of the session, if it has no connection.
        suspended: Option<Arc<Suspension>>,
    },
    /// The session has no connection, and the call does not wait for one.
    #[error(
        ": the call was not sent, and so not executed: {_0}; call again later, or another node"
    )]
    Suspended(Arc<Suspension>),
    /// The handler dropped the request, or its reply could not be sent.
    #[error("{_0}")]
    NoReply(NoReply),
    /// The service or its session ended before the answer came. The text says what ended, by what,
    /// and how to have another.
    #[error("the call got no answer: {_0}; {MAY_BE_EXECUTED}")]
    Lost(String),
    /// The reply's bytes are not valid, for the codec's reason.
    #[error(
        ": the reply is not valid: {_0}; the handler has executed the call; see what that peer's \
         codec writes"
    )]
    InvalidReply(String),
}

impl CallError {
    pub(super) fn new(service: String, peer: String, failure: CallFailure) -> Self {
        Self(Box::new(FailedCall {
            service,
            peer,
            failure,
            out_of_retries: None,
        }))
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> CallErrorKind {
        match &self.0.failure {
            CallFailure::Failed { .. } => CallErrorKind::Failed,
            CallFailure::NotSent(_) | CallFailure::CannotOpen(_) => CallErrorKind::NotSent,
            CallFailure::NoSession => CallErrorKind::NoSession,
            CallFailure::Refused(reason) => {
                let meaning = reason.meaning();
                meaning.map_or(CallErrorKind::Refused, |(kind, _)| kind)
            }
            CallFailure::DeadlineExceeded { .. } | CallFailure::NoPeer(_) => {
                CallErrorKind::DeadlineExceeded
            }
            CallFailure::Suspended(_) => CallErrorKind::Suspended,
            CallFailure::NoReply(NoReply::Dropped) => CallErrorKind::Unanswered,
            CallFailure::NoReply(NoReply::TooLong { .. }) => CallErrorKind::ReplyTooLong,
            CallFailure::NoReply(NoReply::NotEncoded(_)) => CallErrorKind::ReplyNotEncoded,
            CallFailure::Lost(_) => CallErrorKind::Lost,
            CallFailure::InvalidReply(_) => CallErrorKind::InvalidReply,
        }
    }

    /// Returns how far the call came, as far as that is certain.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match &self.0.failure {
            CallFailure::NotSent(_)
            | CallFailure::CannotOpen(_)
            | CallFailure::NoPeer(_)
            | CallFailure::NoSession
            | CallFailure::Refused(_)
            | CallFailure::Suspended(_)
            | CallFailure::DeadlineExceeded { is_sent: false, .. } => Execution::NotExecuted,
            CallFailure::DeadlineExceeded { .. }
            | CallFailure::NoReply(NoReply::Dropped)
            | CallFailure::Lost(_) => Execution::Unknown,
            CallFailure::Failed { .. } | CallFailure::NoReply(_) | CallFailure::InvalidReply(_) => {
                Execution::Executed
            }
        }
    }

    /// Returns the service's name.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.0.service
    }

    /// Returns the peer's address, with the names that are known of it. For a call of a
    /// [`PeersCaller`](crate::PeersCaller) this is the peer of the attempt that the error is
    /// of, or words for all of its peers if the error is of none: until the deadline no peer took the
    /// call, or none is kept any more.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.0.peer
    }

    /// Returns the code and the text that the handler [failed](crate::Request::fail) the
    /// call with. The code's meaning is the application's, and the text has at most 4 KiB.
    ///
    /// A service with error types of its own makes them part of the reply, as in
    /// `peer.caller::<Request, Result<Reply, Refusal>>(..)`. They are then read in place too.
    #[must_use]
    pub fn failure(&self) -> Option<(u32, &str)> {
        match &self.0.failure {
            CallFailure::Failed { code, text } => Some((*code, text)),
            _ => None,
        }
    }

    /// Returns the suspension of the session, if the call had no chance because the session has no
    /// connection, or one over which the peer's host is silent: since when, why, and what this node
    /// does about it. The service is not to blame then.
    #[must_use]
    pub fn suspended(&self) -> Option<&Suspension> {
        match &self.0.failure {
            CallFailure::DeadlineExceeded { suspended, .. } => suspended.as_deref(),
            CallFailure::Suspended(suspended) => Some(suspended),
            CallFailure::NotSent(error) => error.suspended(),
            _ => None,
        }
    }

    /// Returns the error of sending, if the request did not go out.
    #[must_use]
    pub fn send_error(&self) -> Option<&SendError> {
        match &self.0.failure {
            CallFailure::NotSent(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the bytes of a reply that was [too long](CallErrorKind::ReplyTooLong), with those of its
    /// header, where they are known; or those of a request that was.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match &self.0.failure {
            CallFailure::NoReply(NoReply::TooLong { length, .. }) => *length,
            _ => self.send_error()?.length(),
        }
    }

    /// Returns the most bytes that a reply may have which was [too long](CallErrorKind::ReplyTooLong),
    /// the smaller of both ends' limits; or a request that was.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match &self.0.failure {
            CallFailure::NoReply(NoReply::TooLong { limit, .. }) => Some(*limit),
            _ => self.send_error()?.limit(),
        }
    }

    /// Returns the error of opening the caller in a session, if that kept the request of a
    /// [`PeersCaller`](crate::PeersCaller) from going out.
    #[must_use]
    pub fn open_error(&self) -> Option<&OpenError> {
        match &self.0.failure {
            CallFailure::CannotOpen(error) => Some(error),
            _ => None,
        }
    }

    /// Notes that only this kept the call from being tried again.
    pub(super) fn out_of_retries(mut self, why: OutOfRetries) -> Self {
        self.0.out_of_retries = Some(why);
        self
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

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (service, peer, failure) = (self.service(), self.peer(), &self.0.failure);
        match failure {
            CallFailure::NotSent(_) | CallFailure::CannotOpen(_) | CallFailure::Lost(_) => {
                failure.fmt(f)?;
            }
            _ => write!(f, "service \"{service}\" of {peer}{failure}")?,
        }
        self.0.out_of_retries.map_or(Ok(()), |why| why.fmt(f))
    }
}

impl std::error::Error for CallError {}

/// What keeps a call from being tried again that would be.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum OutOfRetries {
    /// The budget of its caller is empty.
    #[error(
        "; it is not tried again, because the retry budget is empty: of this caller's last calls too \
         many failed, and retries must not multiply an overload"
    )]
    Budget,
    /// The call has taken all that one call may take of the budget.
    #[error(
        "; it is not tried again, because it has taken its share of the retry budget: one call may \
         take a fifth of the retries that are left when it begins"
    )]
    Share,
}

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
                (label::CALLER.subject)(service, peer)
            ),
            other if other.cause() == Some(&EndCause::PeerClosed(CloseReason::NoRoom)) => format!(
                "{} has ended: the service gave this caller up, because its replies were not taken \
                 for too long; take replies, or drop those that are held, and make the caller anew",
                (label::CALLER.subject)(service, peer)
            ),
            other => RecvError::from(other).to_string(),
        })
    }
}

ibex_core::extend::debug_as_display!(CallError, CallFailure);

/// Returns what kept the answer of a call away, if it was not the service.
fn cut_off(suspended: Option<&Suspension>) -> String {
    suspended.map_or_else(String::new, |suspended| format!(": {suspended}"))
}

/// The longest text of a failure; what is longer is cut.
pub(super) const MAX_FAILURE_BYTES: usize = 4096;
