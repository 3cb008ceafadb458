//! Wakers that are called at a given time: the deadlines of calls, for which tasks have no timer of
//! their own.

use std::{task::Waker, time::Instant};

use ibex_protocol::timer::{Timer, TimerTable};
use ibex_ring::parking::Wakers;

use super::core::Common;

/// Times with the wakers to call then. There are few at a time: each place that has deadlines keeps
/// only its next one here.
#[derive(Debug, Default)]
pub(crate) struct Alarms(Vec<(Instant, Waker)>);

impl Alarms {
    /// Calls `waker` at `at`, or when the session ends before. Returns whether `at` is sooner than every
    /// other deadline of the session.
    pub(crate) fn wake_at(&mut self, at: Instant, waker: Waker, common: &mut Common) -> bool {
        let is_sooner = common.timers.next().is_none_or(|next| at < next);
        common.timers.set_sooner(Timer::Alarm, at);
        self.0.push((at, waker));
        is_sooner
    }

    /// Calls the wakers whose time has come.
    pub(super) fn sound(&mut self, now: Instant, timers: &mut TimerTable, wakers: &mut Wakers) {
        let due = self.0.extract_if(.., |(at, _)| *at <= now);
        wakers.extend(due.map(|(_, waker)| waker));
        if let Some(next) = self.0.iter().map(|(at, _)| *at).min() {
            timers.set(Timer::Alarm, next);
        }
    }

    /// Calls all wakers, because the session ends. Who waits by an alarm may wait for others too, and
    /// asks again.
    pub(super) fn end(&mut self, wakers: &mut Wakers) {
        wakers.extend(self.0.drain(..).map(|(_, waker)| waker));
    }
}
