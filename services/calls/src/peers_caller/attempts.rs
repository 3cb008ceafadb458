//! The attempts at one call: which error ends the call, and which leads to another attempt.

use std::time::Instant;

use ibex_core::{OpenErrorKind, Peer, SendErrorKind, extend::parking::Patience};
use ibex_peers::extend::Tried;

use super::retry_budget::RetryBudget;
use crate::{CallError, CallErrorKind, CallOptions, Execution, error::OutOfRetries};

/// The state of a call that may be tried several times.
pub(super) struct Attempts {
    pub(super) deadline: Option<Instant>,
    pub(super) tried: Tried,
    /// A thread runs the call's future and nothing else.
    pub(super) is_blocking: bool,
    options: CallOptions,
    /// The times that the call may yet be sent again after an outcome that is not known.
    repeats: u32,
    /// The retries and hedges that the call may yet take from the budget.
    share: u32,
    /// The attempts so far failed so.
    before: Option<CallError>,
}

/// An attempt that has failed.
pub(super) struct FailedAttempt {
    pub(super) error: CallError,
    step: NextStep,
    peer: Peer,
}

/// What becomes of a call after an attempt at it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
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
    fn after(error: &CallError) -> Self {
        use CallErrorKind as Kind;
        match error.kind() {
            Kind::HandedBack | Kind::Overloaded | Kind::Refused => Self::Retry,
            Kind::Draining | Kind::ServiceEnded | Kind::Suspended => Self::Leave,
            Kind::Unanswered | Kind::Lost => Self::Repeat,
            Kind::NotSent => Self::after_not_sent(error),
            Kind::Failed | Kind::InvalidReply | Kind::ReplyTooLong | Kind::ReplyNotEncoded => {
                Self::Fail
            }
            Kind::InvalidRequest | Kind::DeadlineExceeded | Kind::NoSession => Self::Fail,
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

impl FailedAttempt {
    pub(super) fn new(error: CallError, peer: &Peer) -> Self {
        Self {
            step: NextStep::after(&error),
            error,
            peer: peer.clone(),
        }
    }

    /// Returns whether the peer refused the request and may take it later.
    pub(super) fn is_refusal(&self) -> bool {
        self.step == NextStep::Retry
    }

    /// Returns whether a handler has answered, by an error.
    pub(super) fn is_answer(&self) -> bool {
        self.error.execution() == Execution::Executed
    }

    /// Returns whether the call waited until its deadline.
    pub(super) fn is_late(&self) -> bool {
        self.error.kind() == CallErrorKind::DeadlineExceeded
    }
}

impl Attempts {
    /// Begins a call. Its deadline counts from now on.
    pub(super) fn new(options: &CallOptions) -> Self {
        Self {
            deadline: options.deadline(),
            tried: Tried::default(),
            is_blocking: false,
            options: *options,
            repeats: options.retries,
            share: 0,
            before: None,
        }
    }

    /// Notes the call in the budget, before its first attempt.
    pub(super) fn begin(&mut self, budget: &RetryBudget) {
        self.share = budget.deposit();
    }

    /// Returns the options of the next attempt. It need not wait for a connection if there is
    /// another endpoint.
    pub(super) fn options(&self, has_another: bool) -> CallOptions {
        self.options.of_attempt(self.deadline, has_another)
    }

    /// Returns how long an attempt may wait in the thread that polls it, if nothing else is due until
    /// this time.
    pub(super) fn patience(&self, until: Option<Instant>) -> Patience {
        match self.is_blocking {
            true => Patience::Until(until),
            false => Patience::None,
        }
    }

    /// Returns whether the call may be sent again although it may be executed.
    pub(super) fn may_repeat(&self) -> bool {
        self.repeats > 0
    }

    /// Takes an attempt that has failed, and decides whether another follows.
    ///
    /// # Errors
    ///
    /// The error of the call, if there is to be no other attempt.
    pub(super) fn failed(
        &mut self,
        failed: FailedAttempt,
        budget: &RetryBudget,
    ) -> Result<(), CallError> {
        let step = failed.step;
        let is_allowed = match step {
            NextStep::Fail => false,
            NextStep::Repeat => self.may_repeat(),
            NextStep::Exclude | NextStep::Leave | NextStep::Retry => true,
        };
        if !is_allowed {
            return Err(failed.error.behind(self.before.take()));
        }
        // A peer that has left gets no other call, and a call leaves each peer once in a round. So
        // the first such moves multiply no load.
        let is_free = match step {
            NextStep::Exclude | NextStep::Leave => self.tried.is_first_round(),
            _ => false,
        };
        if !is_free && let Err(why) = self.withdraw(budget) {
            let error = failed.error.behind(self.before.take());
            return Err(error.out_of_retries(why));
        }
        self.another_is_made(failed);
        Ok(())
    }

    /// Takes a retry out of the budget.
    fn withdraw(&mut self, budget: &RetryBudget) -> Result<(), OutOfRetries> {
        if self.share == 0 {
            return Err(OutOfRetries::Share);
        }
        if !budget.withdraw() {
            return Err(OutOfRetries::Budget);
        }
        self.share -= 1;
        Ok(())
    }

    /// Returns whether the budget has a retry that the call may take.
    pub(super) fn has_retry(&self, budget: &RetryBudget) -> bool {
        self.share > 0 && budget.has_retry()
    }

    /// Takes an attempt that has failed and that was hedged.
    pub(super) fn hedged(&mut self, failed: FailedAttempt) {
        self.share = self.share.saturating_sub(1);
        self.another_is_made(failed);
    }

    /// Takes an attempt that has failed, after or beside which another one is made.
    fn another_is_made(&mut self, failed: FailedAttempt) {
        let FailedAttempt { error, step, peer } = failed;
        let repeats = u32::from(step == NextStep::Repeat);
        self.repeats = self.repeats.saturating_sub(repeats);
        let is_suspended = error.kind() == CallErrorKind::Suspended;
        let fails_while_suspended = self.options.fails_while_suspended;
        match step == NextStep::Exclude || (is_suspended && fails_while_suspended) {
            true => self.tried.exclude(&peer),
            false => self.tried.add(&peer),
        }
        self.before = Some(error.behind(self.before.take()));
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
