//! How quickly a service has handled requests lately, and so which requests it cannot answer before
//! their deadline. What no handler can finish in time is refused before one begins it.

#![forbid(unsafe_code)]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The shortest time in which handlers have lately answered a request. A few quick requests count more than
/// many long ones, because a request must not be refused that may be a quick one.
#[derive(Debug, Default)]
pub(crate) struct HandlingTime(AtomicU64);

impl HandlingTime {
    /// Notes a request that a handler has ended in time. Two at once may count as one.
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

    pub(crate) fn get(&self) -> Duration {
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

    /// Returns whether a request that waits behind so many others would be answered too late.
    pub(crate) fn comes_too_late(&self, left: Duration, before: usize) -> bool {
        // Half as much again, because a request has waited before the service saw it, and a shorter
        // queue keeps the handlers as busy as a longer one.
        let before = u32::try_from(before + before.div_ceil(2)).unwrap_or(u32::MAX);
        self.interval.saturating_mul(before) > left
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// A longer time moves the shortest by so much of the difference.
const SLOWLY: u64 = 64;
/// Intervals of which the average is made.
const AVERAGED: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Duration = Duration::from_secs(10);

    /// Returns a pace of one request in ten seconds.
    fn busy() -> ServicePace {
        let mut pace = ServicePace::default();
        let begun = Instant::now();
        for step in 0..100 {
            pace.taken(begun + TAKES * step, true);
        }
        pace
    }

    #[test]
    fn requests_that_wait_too_long_are_found() {
        let pace = busy();
        // Six before it, and half as many again.
        assert!(!pace.comes_too_late(TAKES * 10, 6));
        assert!(pace.comes_too_late(TAKES * 8, 6));
        assert!(!pace.comes_too_late(Duration::ZERO, 0));
    }

    #[test]
    fn no_request_waits_too_long_where_none_has_waited() {
        let mut pace = ServicePace::default();
        let begun = Instant::now();
        for step in 0..100 {
            pace.taken(begun + TAKES * step, false);
        }
        assert!(!pace.comes_too_late(Duration::ZERO, 1_000));
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
