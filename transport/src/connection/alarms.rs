//! Wakers that are called at a time: the deadlines of calls, which no task has a timer for.

use std::{task::Waker, time::Instant};

use ibex_protocol::timer::{Timer, TimerTable};
use ibex_ring::parking::Wakers;

use super::core::Common;

/// Times, and who is woken then. Few at a time: each place that has deadlines keeps its next one
/// here.
#[derive(Debug, Default)]
pub(crate) struct Alarms(Vec<(Instant, Waker)>);

impl Alarms {
    /// Calls `waker` at `at`, while the session lives. Returns whether that is sooner than
    /// anything else of the session.
    pub(crate) fn wake_at(&mut self, at: Instant, waker: Waker, common: &mut Common) -> bool {
        let is_sooner = common.timers.next().is_none_or(|next| at < next);
        common.timers.set_sooner(Timer::Alarm, at);
        self.0.push((at, waker));
        is_sooner
    }

    /// Wakes those whose time has come.
    pub(super) fn sound(&mut self, now: Instant, timers: &mut TimerTable, wakers: &mut Wakers) {
        let due = self.0.extract_if(.., |(at, _)| *at <= now);
        wakers.extend(due.map(|(_, waker)| waker));
        if let Some(next) = self.0.iter().map(|(at, _)| *at).min() {
            timers.set(Timer::Alarm, next);
        }
    }
}
