//! Wakers that are called at a time: the deadlines of calls, which no task has a timer for.

use std::{task::Waker, time::Instant};

use ibex_protocol::timer::Timer;

use super::core::Core;
use crate::connection::Context;

/// Times, and who is woken then. Few at a time: each place that has deadlines keeps its next one
/// here.
#[derive(Debug, Default)]
pub(super) struct Alarms(Vec<(Instant, Waker)>);

impl Core {
    /// Calls `waker` at `at`, while the session lives. Returns whether that is sooner than
    /// anything else of the session.
    pub(crate) fn wake_at(&mut self, at: Instant, waker: Waker) -> bool {
        let is_sooner = self.common.timers.next().is_none_or(|next| at < next);
        self.common.timers.set_sooner(Timer::Alarm, at);
        self.alarms.0.push((at, waker));
        is_sooner
    }

    /// Wakes those whose time has come.
    pub(super) fn sound_alarms(&mut self, now: Instant, context: &mut Context<'_>) {
        let due = self.alarms.0.extract_if(.., |(at, _)| *at <= now);
        context.wakers.extend(due.map(|(_, waker)| waker));
        if let Some(next) = self.alarms.0.iter().map(|(at, _)| *at).min() {
            self.common.timers.set(Timer::Alarm, next);
        }
    }
}
