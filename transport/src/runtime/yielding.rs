//! Yielding: the cost of giving the core away between two polls.
//!
//! A thread that spins gives the core to other threads between its looks. Threads that wait for
//! each other give it back in microseconds, but a thread that computes keeps it for a time slice.
//! The scheduler runs a woken sleeper before threads that compute, but a yielding thread after
//! them.
//!
//! So after a long yield, waits sleep at once for a while. The first time this while is short,
//! because threads that wait for each other also compute now and then. It doubles whenever the next
//! long yield comes soon.
//!
//! This does not apply while other yields have saved more time than the long ones took. Where many
//! threads wait on few cores, one yield in thousands is long. If some threads slept because of it,
//! they would be woken before the others, and so make the others' yields long.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_base::sync::{AtomicBool, AtomicU64};

/// The state that decides whether waits look before they sleep.
#[derive(Debug)]
pub(crate) struct Yielding {
    begun: Instant,
    /// The time that yields have saved, less the time that long yields took, in nanoseconds.
    saved: AtomicU64,
    is_dear: AtomicBool,
    /// End of the present or last period in which yields are expensive, in nanoseconds since
    /// `begun`.
    dear_until: AtomicU64,
    /// Length of that period, in nanoseconds.
    dear_for: AtomicU64,
}

impl Default for Yielding {
    /// Assumes at first that yields are cheap.
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
        // The clock is read only during or just after such a period.
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

    /// Notes that a yield did not take long.
    #[inline]
    pub(crate) fn was_cheap(&self) {
        // The yields of two threads at once may count as one.
        let saved = self.saved.load(Ordering::Relaxed) + SAVED_BY_EACH;
        self.saved.store(saved.min(MOST_SAVED), Ordering::Relaxed);
    }

    /// Notes that a yield that ended `now` took at least [`KEPT`].
    #[cold]
    pub(crate) fn was_dear(&self, now: Instant, took: Duration) {
        let saved = self.saved.load(Ordering::Relaxed);
        let left = saved.checked_sub(nanos(took));
        self.saved.store(left.unwrap_or(0), Ordering::Relaxed);
        if left.is_some() {
            return;
        }
        if self.is_dear.swap(true, Ordering::Relaxed) {
            // Another thread has reported a long yield of the same period.
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

/// Duration from which a yield is long: a thread that keeps the core for this time computes.
/// Threads that wait for each other give it back sooner, however many a machine has.
pub(crate) const KEPT: Duration = Duration::from_millis(1);
/// The time that a yield saves compared with a sleep and a wake-up, in nanoseconds. One way over
/// loopback takes 9 µs between blocking sockets, and 4 to 5 µs where both ends spin.
const SAVED_BY_EACH: u64 = 4_000;
/// Savings at the start, in nanoseconds, because threads compute while a program starts.
const SAVED_AT_FIRST: u64 = 20_000_000;
/// Most savings that count, in nanoseconds, so that threads that begin to compute are noticed soon.
const MOST_SAVED: u64 = 50_000_000;
/// After a first long yield, waits sleep at once for this multiple of its duration.
const FIRST: u32 = 4;
/// Longest time for which waits sleep at once, because the computing threads may be gone by then.
/// One long yield in each such time takes a hundredth of it at most.
const LONGEST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a state in which yields have saved nothing.
    fn without_savings() -> Yielding {
        let yielding = Yielding::default();
        yielding.saved.store(0, Ordering::Relaxed);
        yielding
    }

    #[test]
    fn a_long_yield_does_not_count_while_others_have_saved_as_much() {
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
    fn threads_that_begin_to_compute_are_noticed_despite_savings() {
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
