//! Yielding: the cost of giving the core away between two looks.
//!
//! Who looks for what another thread has to do gives it the core in between. Threads that
//! wait for each other give it back in microseconds; one that computes keeps it for a time
//! slice. A thread that sleeps is woken ahead of those that compute, where one that yields
//! comes behind them. So after a yield that took long waits sleep at once: not for long the
//! first time, since threads that wait for each other compute now and then; and for twice as
//! long whenever the next one comes soon. But not while other yields have saved more than the
//! long ones took: where many threads wait on few cores, one of thousands is long, and if some
//! slept for it, they would be woken ahead of the rest, whose yields were long then.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_base::sync::{AtomicBool, AtomicU64};

/// The state that decides if waits look before they sleep.
#[derive(Debug)]
pub(crate) struct Yielding {
    begun: Instant,
    /// The time that yields have saved beyond what the long ones took, in nanoseconds.
    saved: AtomicU64,
    is_dear: AtomicBool,
    /// Until when it is, or was the last time; nanoseconds since the beginning.
    dear_until: AtomicU64,
    /// How long that was or is.
    dear_for: AtomicU64,
}

impl Default for Yielding {
    /// Begins with cheap yields.
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            saved: AtomicU64::new(SAVED_AT_FIRST),
            is_dear: AtomicBool::new(false),
            dear_until: AtomicU64::new(0),
            dear_for: AtomicU64::new(0),
        }
    }
}

impl Yielding {
    /// Returns whether waits should sleep at once.
    #[inline]
    pub(crate) fn is_dear(&self) -> bool {
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

    /// A yield did not take long.
    #[inline]
    pub(crate) fn was_cheap(&self) {
        // Two threads may count as one.
        let saved = self.saved.load(Ordering::Relaxed) + SAVED_BY_EACH;
        self.saved.store(saved.min(MOST_SAVED), Ordering::Relaxed);
    }

    /// A yield that ended `now` took at least [`KEPT`].
    #[cold]
    pub(crate) fn was_dear(&self, now: Instant, took: Duration) {
        let saved = self.saved.load(Ordering::Relaxed);
        let left = saved.checked_sub(nanos(took));
        self.saved.store(left.unwrap_or(0), Ordering::Relaxed);
        if left.is_some() {
            return;
        }
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

/// A thread that keeps the core for so long computes; threads that wait for each other,
/// as many as a machine has, are back before.
pub(crate) const KEPT: Duration = Duration::from_millis(1);
/// The time that a yield saves where else a thread slept and was woken, in nanoseconds: one way over
/// loopback takes 9 us between sockets that block, and 4 to 5 where both ends look.
const SAVED_BY_EACH: u64 = 4_000;
/// Threads that start compute.
const SAVED_AT_FIRST: u64 = 20_000_000;
/// So that threads that begin to compute are noticed soon.
const MOST_SAVED: u64 = 50_000_000;
/// After an expensive yield, waits sleep at once for this multiple of its duration, the first time.
const FIRST: u32 = 4;
/// And no longer than this, by when the others may be gone; a yield each takes a hundredth of
/// the time at most.
const LONGEST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    /// Its yields have saved nothing.
    fn without_savings() -> Yielding {
        let yielding = Yielding::default();
        yielding.saved.store(0, Ordering::Relaxed);
        yielding
    }

    #[test]
    fn a_long_yield_of_many_is_what_the_others_have_saved() {
        let yielding = without_savings();
        let now = yielding.begun + Duration::from_secs(9);
        let many = nanos(KEPT) / SAVED_BY_EACH;
        for _ in 0..2 {
            (0..many).for_each(|_| yielding.was_cheap());
            yielding.was_dear(now, KEPT);
            assert!(!yielding.is_dear_at(now));
        }
        (1..many).for_each(|_| yielding.was_cheap());
        yielding.was_dear(now, KEPT);
        assert!(yielding.is_dear_at(now));
    }

    #[test]
    fn who_begins_to_compute_is_noticed_soon_however_much_was_saved() {
        let yielding = Yielding::default();
        let now = yielding.begun + Duration::from_secs(9);
        (0..1_000_000).for_each(|_| yielding.was_cheap());
        (0..50).for_each(|_| yielding.was_dear(now, KEPT));
        assert!(!yielding.is_dear_at(now));
        yielding.was_dear(now, KEPT);
        assert!(yielding.is_dear_at(now));
    }

    #[test]
    fn waits_look_until_a_yield_was_dear_and_again_after_a_multiple_of_it() {
        let yielding = without_savings();
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
        let yielding = without_savings();
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
