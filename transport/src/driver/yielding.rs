//! What it costs to give the core away between two looks.
//!
//! Who looks for what another thread has to do gives it the core in between. Threads that
//! wait for each other give it back in microseconds; one that computes keeps it for a time
//! slice. A thread that sleeps is woken ahead of those that compute, where one that yields
//! comes behind them. So after a yield that took long waits sleep at once: not for long the
//! first time, since threads that wait for each other compute now and then; and for twice as
//! long whenever the next one comes soon.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Whether waits look before they sleep.
#[derive(Debug)]
pub(super) struct Yielding {
    begun: Instant,
    is_dear: AtomicBool,
    /// Until when it is, or was the last time; nanoseconds since the beginning.
    dear_until: AtomicU64,
    /// How long that was or is.
    dear_for: AtomicU64,
}

impl Default for Yielding {
    /// Yields are cheap.
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            is_dear: AtomicBool::new(false),
            dear_until: AtomicU64::new(0),
            dear_for: AtomicU64::new(0),
        }
    }
}

impl Yielding {
    /// Whether who waits should sleep at once.
    #[inline]
    pub(super) fn is_dear(&self) -> bool {
        // The clock is read only while it matters.
        self.is_dear.load(Ordering::Relaxed) && self.is_dear_at(Instant::now())
    }

    #[cold]
    fn is_dear_at(&self, now: Instant) -> bool {
        let is_dear = self.nanos_at(now) < self.dear_until.load(Ordering::Relaxed);
        if !is_dear {
            self.is_dear.store(false, Ordering::Relaxed);
        }
        is_dear
    }

    /// A yield that ended `now` took at least [`KEPT`].
    #[cold]
    pub(super) fn was_dear(&self, now: Instant, took: Duration) {
        if self.is_dear.swap(true, Ordering::Relaxed) {
            // Another thread has said so of the same time.
            return;
        }
        let now = self.nanos_at(now);
        let last = self.dear_for.load(Ordering::Relaxed);
        let is_soon = now < self.dear_until.load(Ordering::Relaxed).saturating_add(last);
        let first = nanos(took.saturating_mul(FIRST));
        let dear_for = match is_soon {
            true => first.max(last.saturating_mul(2)),
            false => first,
        };
        let dear_for = dear_for.min(nanos(LONGEST));
        self.dear_for.store(dear_for, Ordering::Relaxed);
        self.dear_until
            .store(now.saturating_add(dear_for), Ordering::Relaxed);
    }

    fn nanos_at(&self, time: Instant) -> u64 {
        nanos(time.saturating_duration_since(self.begun))
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Who is given the core and keeps it for so long computes; threads that wait for each other,
/// as many as a machine has, are back before.
pub(super) const KEPT: Duration = Duration::from_millis(1);
/// For so many times what the yield took waits sleep at once, the first time.
const FIRST: u32 = 4;
/// And no longer than this, by when the others may be gone; a yield each takes a hundredth of
/// the time at most.
const LONGEST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_look_until_a_yield_was_dear_and_again_after_a_multiple_of_it() {
        let yielding = Yielding::default();
        assert!(!yielding.is_dear());
        let now = yielding.begun + Duration::from_secs(9);
        yielding.was_dear(now, KEPT);
        yielding.was_dear(now, KEPT);
        assert!(yielding.is_dear_at(now));
        assert!(yielding.is_dear_at(now + KEPT * (FIRST - 1)));
        assert!(!yielding.is_dear_at(now + KEPT * FIRST));
        assert!(!yielding.is_dear());
    }

    #[test]
    fn one_that_comes_soon_counts_twice_up_to_a_limit() {
        let yielding = Yielding::default();
        let mut now = yielding.begun + Duration::from_secs(9);
        for round in 0..20 {
            yielding.was_dear(now, KEPT);
            let length = (KEPT * FIRST * 2u32.pow(round)).min(LONGEST);
            assert!(yielding.is_dear_at(now + length - KEPT));
            now += length + KEPT;
            assert!(!yielding.is_dear_at(now));
        }
        now += LONGEST;
        yielding.was_dear(now, KEPT);
        assert!(!yielding.is_dear_at(now + KEPT * FIRST));
    }

    #[test]
    fn however_long_it_took_they_look_again_soon() {
        let yielding = Yielding::default();
        yielding.was_dear(yielding.begun, Duration::MAX);
        assert!(yielding.is_dear_at(yielding.begun + LONGEST - KEPT));
        assert!(!yielding.is_dear_at(yielding.begun + LONGEST));
    }
}
