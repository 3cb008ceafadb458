//! How quickly a service has handled requests lately, and so which requests it cannot answer before
//! their deadline. What no handler can finish in time is refused before one begins it.

#![forbid(unsafe_code)]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The shortest time that handlers have lately had a request for. A few quick requests count more than
/// many long ones, because a request must not be refused that may be a quick one.
#[derive(Debug, Default)]
pub(crate) struct HandlingTime(AtomicU64);

impl HandlingTime {
    /// Notes a request that a handler has ended. Two at once may count as one.
    pub(crate) fn note(&self, took: Duration) {
        // Relaxed: the number stands for itself.
        let before = self.0.load(Ordering::Relaxed);
        let took = nanos(took).max(1);
        let now = match before {
            0 => took,
            before if took < before => took,
            before => before + (took - before) / SLOWLY,
        };
        self.0.store(now, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The times at which handlers take requests, and what follows for those that wait.
#[derive(Debug, Default)]
pub(crate) struct ServicePace {
    /// When a handler last took a request, if others were waiting then.
    taken_at: Option<Instant>,
    /// The time from one such request to the next, on average.
    interval: Duration,
    /// Requests that were found to be too late since one was let through all the same.
    refused: u32,
}

impl ServicePace {
    /// Notes that a handler takes a request, and whether others wait behind it.
    pub(crate) fn taken(&mut self, now: Instant, others_wait: bool) {
        if let Some(before) = self.taken_at {
            let since = now.saturating_duration_since(before);
            self.interval = (self.interval * (AVERAGED - 1) + since) / AVERAGED;
        }
        self.taken_at = others_wait.then_some(now);
    }

    /// Returns whether a request that has so many others before it would be answered too late. Of those
    /// that have none, one in some counts as in time, so that a service which has become quicker is
    /// noticed.
    pub(crate) fn is_too_late(
        &mut self,
        deadline: Option<Instant>,
        before: usize,
        handling: &HandlingTime,
    ) -> bool {
        let Some(deadline) = deadline else {
            return false;
        };
        let is_next = before == 0;
        // Half as much again, because a request has waited before the service saw it, and a shorter
        // queue keeps the handlers as busy as a longer one.
        let before = u32::try_from(before + before.div_ceil(2)).unwrap_or(u32::MAX);
        let takes = self.interval.saturating_mul(before) + handling.get();
        if deadline.saturating_duration_since(Instant::now()) >= takes {
            return false;
        }
        self.refused = (self.refused + u32::from(is_next)) % PROBED;
        !is_next || self.refused != 0
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// A longer time moves the shortest by so much of the difference.
const SLOWLY: u64 = 64;
/// Intervals of which the average is made.
const AVERAGED: u32 = 8;
/// Of so many requests that seem to be too late, one is let through.
const PROBED: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Duration = Duration::from_secs(10);

    /// Returns a pace of one request in ten seconds, each handled in ten.
    fn busy() -> (ServicePace, HandlingTime) {
        let (mut pace, handling) = (ServicePace::default(), HandlingTime::default());
        let begun = Instant::now();
        for step in 0..100 {
            pace.taken(begun + TAKES * step, true);
            handling.note(TAKES);
        }
        (pace, handling)
    }

    #[test]
    fn a_service_that_nobody_waits_for_refuses_nothing() {
        let (mut pace, handling) = (ServicePace::default(), HandlingTime::default());
        let now = Instant::now();
        for step in 0..100 {
            pace.taken(now + TAKES * step, false);
        }
        assert!(!pace.is_too_late(Some(now + TAKES), 1_000, &handling));
        assert!(!pace.is_too_late(None, 1_000, &handling));
    }

    #[test]
    fn requests_are_refused_that_wait_or_take_too_long_but_for_a_few_that_need_not_wait() {
        let (mut pace, handling) = busy();
        let mut refused = |before, left: Duration| {
            let deadline = Some(Instant::now() + left);
            let each = (0..PROBED).filter(|_| pace.is_too_late(deadline, before, &handling));
            each.count() as u32
        };
        // Six before it, half as many again, and itself.
        assert_eq!(refused(6, TAKES * 11), 0);
        assert_eq!(refused(6, TAKES * 9), PROBED);
        assert_eq!(refused(0, TAKES * 2), 0);
        assert_eq!(refused(0, TAKES / 2), PROBED - 1);
    }

    #[test]
    fn a_quick_request_counts_more_than_long_ones() {
        let handling = HandlingTime::default();
        handling.note(TAKES);
        assert_eq!(handling.get(), TAKES);
        handling.note(TAKES / 10);
        assert_eq!(handling.get(), TAKES / 10);
        handling.note(TAKES);
        assert!(handling.get() < TAKES / 5, "{:?}", handling.get());
        (0..1_000).for_each(|_| handling.note(TAKES));
        assert!(handling.get() > TAKES * 9 / 10, "{:?}", handling.get());
    }
}
