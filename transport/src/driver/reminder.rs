//! What calls over a session wait for beside messages: a time, and whatever a program says.

use std::{task::Waker, time::Instant};

use super::{Condition, SessionShared, TimedOut};
use crate::ring::WaitSlot;

impl SessionShared {
    /// Calls `waker` at `at`, by whoever turns the engine then, unless the session ends before.
    pub fn wake_at(&self, at: Instant, waker: &Waker) {
        self.watch(|link| link.wake_at(at, waker.clone()));
    }

    /// Waits until `condition` holds. It is looked at again when `slot` is woken, and when a
    /// waker is called that `condition` got from [`thread_waker`](crate::ring::thread_waker) in
    /// its `arm`.
    pub fn wait_at<C: Condition>(
        &self,
        slot: &WaitSlot,
        deadline: Option<Instant>,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        self.wait(slot, deadline, condition)
    }
}
