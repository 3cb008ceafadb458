//! Waits for other things than messages: a time, and conditions of the program.

use std::{
    task::{Poll, Waker},
    time::Instant,
};

use ibex_base::fork;
use ibex_ring::parking::{self, AtSlot, Ticket, TimedOut, WaitSlot};

use super::{Driver, PollTarget, Runtime};

impl Runtime {
    /// Waits until `check` finds something. Looks again when `slot` is woken.
    pub fn wait_at<T>(
        &self,
        slot: &WaitSlot,
        deadline: Option<Instant>,
        check: impl FnMut() -> Option<T>,
    ) -> Result<T, TimedOut> {
        let mut held = None;
        let condition = AtSlot::new(slot, &mut held, check);
        self.first().wait(deadline, PollTarget::Socket, condition)
    }

    /// Waits as [`wait_at`](Self::wait_at) does, for a task. While it is pending, the waker is left
    /// at `slot` under `held`.
    pub fn poll_at<T>(
        &self,
        slot: &WaitSlot,
        held: &mut Option<Ticket>,
        waker: &Waker,
        check: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        let condition = AtSlot::new(slot, held, check);
        parking::poll(condition, waker, || self.turn_for_caller())
    }

    /// Wakes the threads that wait at `slot`, and a program that sleeps on the epoll set.
    pub fn wake_at(&self, slot: &WaitSlot) {
        slot.wake_all();
        self.first().tell_watcher();
    }

    /// Runs a turn for a call that does not wait, where callers drive the node.
    pub fn turn_for_caller(&self) {
        if self.driver() == Driver::Caller && !fork::is_child() {
            self.poll_all();
        }
    }
}
