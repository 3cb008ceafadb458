//! Waits for other things than messages: a time, and conditions of the program.

use std::time::Instant;

use ibex_base::fork;
use ibex_ring::parking::{Condition, TimedOut, WaitSlot};

use super::{Driver, Looks, Runtime};

impl Runtime {
    /// Waits until `condition` holds. Checks it again when `slot` is woken.
    pub fn wait_at<C: Condition>(
        &self,
        slot: &WaitSlot,
        deadline: Option<Instant>,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        self.wait(slot, deadline, Looks::Socket, condition)
    }

    /// Wakes the threads that wait at `slot`, and a program that sleeps on the epoll set.
    pub fn wake_at(&self, slot: &WaitSlot) {
        slot.wake_all();
        self.first().tell_watcher();
    }

    /// Runs a turn for a call that does not wait, where callers drive the node.
    pub fn turn_for_caller(&self) {
        if self.driver() == Driver::Caller && !fork::is_child() {
            self.look_around();
        }
    }
}
