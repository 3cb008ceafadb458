//! The attempts at one call: which error ends the call, and which leads to another attempt.

use std::time::Instant;

use super::retry_budget::RetryBudget;
use crate::{
    OpenErrorKind, Peer, SendErrorKind,
    calls::{CallError, CallErrorKind, CallOptions},
    peers::Tried,
};

/// The state of a call that may be tried several times.
pub(super) struct Attempts {
    pub(super) deadline: Option<Instant>,
    pub(super) tried: Tried,
    options: CallOptions,
    /// The times that the call may yet be sent again after an outcome that is not known.
    repeats: u32,
    /// The attempts so far failed so.
    before: Option<CallError>,
}

/// What becomes of a call after an attempt at it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// No other attempt mends it.
    Fail,
    /// This session cannot serve it, another may.
    Exclude,
    /// The session, the service or the connection is not there any more. Nothing was executed.
    Leave,
    /// The peer refused it and may take it later. Nothing was executed.
    Retry,
    /// It may have been executed.
    Repeat,
}

impl NextStep {
    /// Returns what follows an error.
    pub(super) fn after(error: &CallError) -> Self {
        match error.kind() {
            CallErrorKind::HandedBack | CallErrorKind::Overloaded | CallErrorKind::Refused => {
                Self::Retry
            }
            CallErrorKind::Draining | CallErrorKind::ServiceEnded | CallErrorKind::Suspended => {
                Self::Leave
            }
            CallErrorKind::Unanswered | CallErrorKind::Lost => Self::Repeat,
            CallErrorKind::NotSent => Self::after_not_sent(error),
            CallErrorKind::Failed
            | CallErrorKind::InvalidReply
            | CallErrorKind::InvalidRequest
            | CallErrorKind::DeadlineExceeded
            | CallErrorKind::NoSession => Self::Fail,
        }
    }

    fn after_not_sent(error: &CallError) -> Self {
        let of_open = error.open_error().map(|open| match open.kind() {
            OpenErrorKind::SessionOver => Self::Leave,
            OpenErrorKind::AlreadyOpen | OpenErrorKind::TooMany | OpenErrorKind::Memory => {
                Self::Exclude
            }
            _ => Self::Fail,
        });
        let of_send = || match error.send_error()?.kind() {
            SendErrorKind::Disconnected => Some(Self::Leave),
            SendErrorKind::NotOpened | SendErrorKind::Mismatch => Some(Self::Exclude),
            SendErrorKind::Memory => Some(Self::Retry),
            _ => None,
        };
        of_open.or_else(of_send).unwrap_or(Self::Fail)
    }
}

impl Attempts {
    /// Begins a call. Its deadline counts from now on.
    pub(super) fn new(options: &CallOptions) -> Self {
        Self {
            deadline: options.deadline(),
            tried: Tried::default(),
            options: *options,
            repeats: options.retries(),
            before: None,
        }
    }

    /// Returns the options of the next attempt. It need not wait for a connection if there is
    /// another endpoint.
    pub(super) fn options(&self, has_another: bool) -> CallOptions {
        self.options.of_attempt(self.deadline, has_another)
    }

    /// Takes the error of an attempt with `peer`, and what follows it.
    ///
    /// # Errors
    ///
    /// The error of the call, if there is to be no other attempt.
    pub(super) fn failed(
        &mut self,
        error: CallError,
        step: NextStep,
        peer: &Peer,
        budget: &RetryBudget,
    ) -> Result<(), CallError> {
        let is_suspended = error.kind() == CallErrorKind::Suspended;
        let error = error.behind(self.before.take());
        let is_allowed = match step {
            NextStep::Fail => false,
            NextStep::Repeat => self.repeats > 0,
            NextStep::Exclude | NextStep::Leave | NextStep::Retry => true,
        };
        if !is_allowed {
            return Err(error);
        }
        // A peer that has left gets no other call, and a call leaves each peer once in a round. So
        // the first such moves multiply no load.
        let is_free = match step {
            NextStep::Exclude | NextStep::Leave => self.tried.is_first_round(),
            _ => false,
        };
        if !is_free && !budget.withdraw() {
            return Err(error.out_of_retries());
        }
        self.repeats -= u32::from(step == NextStep::Repeat);
        let fails_while_suspended = self.options.extras().fails_while_suspended();
        match step == NextStep::Exclude || (is_suspended && fails_while_suspended) {
            true => self.tried.exclude(peer),
            false => self.tried.add(peer),
        }
        self.before = Some(error);
        Ok(())
    }

    /// Returns the text of the error of the last attempt.
    pub(super) fn last(&self) -> Option<String> {
        self.before.as_ref().map(CallError::to_string)
    }

    /// Returns the error of a call for which there is no endpoint; that of its last attempt if all
    /// endpoints are excluded.
    pub(super) fn without_endpoint(self, error: CallError, is_excluded: bool) -> CallError {
        match self.before {
            Some(before) if is_excluded => before,
            before => error.behind(before),
        }
    }
}
