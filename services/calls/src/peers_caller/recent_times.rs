//! How long recent calls took, for the time after which a call is hedged.

use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ibex_core::{
    extend::{Recorder, lock},
    stats::Histogram,
};

/// The times of the last 1000 to 2000 calls, and one percentile of them. It takes up to 9 KiB.
///
/// A call costs three relaxed additions. One in a hundred computes the percentile anew, under a lock.
#[derive(Debug)]
pub(super) struct RecentTimes {
    /// The share of calls that are faster, from 0 to 1.
    share: f64,
    /// The calls since `earlier` was taken.
    recorder: Recorder,
    /// The thousand calls before those.
    earlier: Mutex<Histogram>,
    calls: AtomicU64,
    /// The percentile in nanoseconds; 0 until it is known.
    limit: AtomicU64,
}

impl RecentTimes {
    pub(super) fn new(percentile: u8) -> Self {
        let recorder = Recorder::default();
        Self {
            share: f64::from(percentile) / 100.0,
            earlier: Mutex::new(recorder.take()),
            recorder,
            calls: AtomicU64::new(0),
            limit: AtomicU64::new(0),
        }
    }

    /// Begins to measure a call.
    pub(super) fn begin(&self, began: Instant) -> TimedCall<'_> {
        TimedCall { times: self, began }
    }

    /// Notes how long a call took, or may have taken at least: a call that was hedged counts from its
    /// beginning to the first answer. So each such call counts as slower than the limit, as it was.
    fn record(&self, took: Duration) {
        self.recorder.record(took);
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if calls.is_multiple_of(CALLS_PER_POLL) {
            self.check(calls.is_multiple_of(CALLS_KEPT));
        }
    }

    /// Computes the percentile anew.
    #[cold]
    fn check(&self, begins_anew: bool) {
        let mut earlier = lock(&self.earlier);
        let mut recent = self.recorder.snapshot();
        recent.merge(&earlier);
        if let Some(limit) = recent.quantile(self.share) {
            let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
            self.limit.store(limit, Ordering::Relaxed);
        }
        if begins_anew {
            *earlier = self.recorder.take();
        }
    }

    /// Returns the time after which a call is hedged; `None` while too few calls are known.
    pub(super) fn limit(&self) -> Option<Duration> {
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        (!limit.is_zero()).then(|| limit.max(LEAST))
    }
}

/// A call whose time is to be noted. One whose future is dropped before it has an answer would have
/// taken longer: it counts if it was slow by then, and says nothing otherwise. Were such calls left out,
/// a program that gives up slow calls would have the slow ones missing, and the percentile would fall.
#[must_use = "dropping it says that the call was given up"]
pub(super) struct TimedCall<'a> {
    times: &'a RecentTimes,
    began: Instant,
}

impl TimedCall<'_> {
    /// Notes that a handler has answered now, or that the deadline has passed. Then the answer would
    /// have taken longer than the rest of the time for the call.
    pub(super) fn ended(self, is_late: bool) {
        let least = self.times.limit().filter(|_| is_late);
        self.times
            .record(self.began.elapsed().max(least.unwrap_or_default()));
        mem::forget(self);
    }

    /// Notes that the call failed otherwise. Such failures are quick, and say nothing of how long
    /// answers take.
    pub(super) fn failed(self) {
        mem::forget(self);
    }
}

impl Drop for TimedCall<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        if self.times.limit().is_some_and(|limit| took >= limit) {
            self.times.record(took);
        }
    }
}

/// The calls after which the percentile is computed, for the first time and again.
const CALLS_PER_POLL: u64 = 100;
/// The calls after which those before them are forgotten.
const CALLS_KEPT: u64 = 1000;
/// The least time after which a call is hedged. A thread takes about so long to be woken, and so a
/// hedge would not be sooner.
const LEAST: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn record(times: &RecentTimes, calls: u32, took: Duration) {
        (0..calls).for_each(|_| times.record(took));
    }

    const FAST: Duration = Duration::from_millis(1);
    const SLOW: Duration = Duration::from_millis(50);

    #[test]
    fn the_limit_is_known_from_the_hundredth_call_on() {
        let times = RecentTimes::new(95);
        record(&times, 96, FAST);
        record(&times, 3, SLOW);
        assert_eq!(times.limit(), None);
        record(&times, 1, SLOW);
        let limit = times.limit().unwrap();
        assert!((FAST..FAST * 2).contains(&limit), "{limit:?}");
    }

    #[test]
    fn the_limit_follows_slower_calls_soon_and_forgets_them() {
        let times = RecentTimes::new(95);
        record(&times, 1000, FAST);
        record(&times, 100, SLOW);
        let limit = times.limit().unwrap();
        assert!((SLOW..SLOW * 2).contains(&limit), "{limit:?}");
        record(&times, 2900, FAST);
        let limit = times.limit().unwrap();
        assert!((FAST..FAST * 2).contains(&limit), "{limit:?}");
    }

    #[test]
    fn calls_that_are_given_up_count_once_they_are_slow() {
        let times = RecentTimes::new(50);
        record(&times, 100, FAST);
        let (now, calls) = (Instant::now(), || times.calls.load(Ordering::Relaxed));
        // A time to come: no time has passed since then.
        drop(times.begin(now + SLOW * 1_000_000));
        assert_eq!(calls(), 100);
        let slow = now
            .checked_sub(SLOW)
            .expect("the machine has run for longer");
        (0..200).for_each(|_| drop(times.begin(slow)));
        assert_eq!(calls(), 300);
        assert!(times.limit().unwrap() >= SLOW);
        times.begin(slow).failed();
        assert_eq!(calls(), 300);
        times.begin(now + SLOW * 1_000_000).ended(true);
        times.begin(slow).ended(false);
        assert_eq!(calls(), 302);
    }

    #[test]
    fn the_limit_is_not_shorter_than_a_wake_up() {
        let times = RecentTimes::new(1);
        record(&times, 100, Duration::from_nanos(1));
        assert_eq!(times.limit(), Some(LEAST));
    }
}
