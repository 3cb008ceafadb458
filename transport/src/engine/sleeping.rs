//! Going to sleep: the engine arms everything and looks once more. The earliest deadline ends the
//! sleep.

use std::{
    sync::atomic::{Ordering, fence},
    time::Instant,
};

use ibex_base::sync::Asymmetry;

use super::Engine;
use crate::clock;

impl Engine {
    /// Arms everything for which peers must ring, for a program that sleeps on the epoll set
    /// itself. Returns whether it armed anything; then the program must look again.
    pub(crate) fn arm_receivers(&mut self) -> bool {
        let armed = self.connections.arm_receivers();
        self.ports.arm_once() | armed
    }

    /// Adds hot sessions to the epoll set again. Returns whether the set now reports every session.
    pub(crate) fn join_epoll(&mut self) -> bool {
        self.connections.join_epoll(&self.warnings)
    }

    /// Arms every ring and looks once more. Returns `None` if there is work, or if `stay_awake` is
    /// set: then the caller must not sleep. Otherwise returns the time to wake up at the latest, if
    /// there is one.
    pub(crate) fn prepare_sleep(
        &mut self,
        now: Instant,
        stay_awake: bool,
    ) -> Option<Option<Instant>> {
        let is_notified = self.join_epoll();
        match self.connections.arm_rings() {
            // One barrier for all words that were set, as in `Arm::arm`.
            Some(true) => Asymmetry::of_process().heavy_here(),
            // DOORBELL, pairs with the fence in `ArmedWord::generation_behind`.
            Some(false) => fence(Ordering::SeqCst),
            None => {}
        }
        let mut work = stay_awake || !is_notified || self.is_finished() || self.ports.arm();
        work |= self.connections.poll_armed_rings();
        if work {
            return None;
        }
        self.connections.stop_polling();
        self.warnings.tell_held(now);
        let next = self.deadline();
        self.note_time(now);
        if next.is_some_and(|next| next <= now) {
            None
        } else {
            Some(next)
        }
    }

    /// Returns the time at which there is something to do even if no event comes.
    fn deadline(&mut self) -> Option<Instant> {
        let next = self.connections.next_deadline();
        next.into_iter()
            .chain(self.controls.deadline)
            .chain(self.closing.deadline())
            .chain(self.connections.watch.next_check())
            .chain(self.ports.next_check())
            .chain(self.warnings.next_due())
            .min()
    }

    /// Sets the alarm for `next`, for a program or executor that sleeps on the epoll set itself.
    pub(crate) fn set_alarm(&mut self, now: Instant, next: Option<Instant>) {
        self.sleeps_until = next;
        if let Some(alarm) = &mut self.alarm {
            alarm.set(now, next);
        }
    }

    /// Sets the alarm for the earliest deadline.
    pub(crate) fn set_alarm_for_deadline(&mut self) {
        let next = self.deadline();
        self.set_alarm(clock::now(), next);
    }

    /// Returns whether the leader would wake too late for a deadline that was added since it fell
    /// asleep.
    pub(crate) fn is_overslept(&mut self) -> bool {
        self.deadline()
            .is_some_and(|deadline| self.sleeps_until.is_none_or(|until| deadline < until))
    }
}
