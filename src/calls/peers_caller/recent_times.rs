//! How long recent calls took, for the time after which a call is hedged.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ibex_base::sync::lock;
use ibex_transport::histogram::Recorder;

use crate::stats::Histogram;

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

    /// Notes how long a call took, or may have taken at least: a call that was hedged counts from its
    /// beginning to the first answer. So each such call counts as slower than the limit, as it was.
    pub(super) fn record(&self, took: Duration) {
        self.recorder.record(took);
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if calls.is_multiple_of(CALLS_PER_LOOK) {
            self.look(calls.is_multiple_of(CALLS_KEPT));
        }
    }

    /// Computes the percentile anew.
    #[cold]
    fn look(&self, begins_anew: bool) {
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

/// The calls after which the percentile is computed, for the first time and again.
const CALLS_PER_LOOK: u64 = 100;
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
    fn the_limit_is_not_shorter_than_a_wake_up() {
        let times = RecentTimes::new(1);
        record(&times, 100, Duration::from_nanos(1));
        assert_eq!(times.limit(), Some(LEAST));
    }
}
