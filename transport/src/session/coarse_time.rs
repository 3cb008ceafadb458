//! A coarse clock for deadlines that need a precision of a few milliseconds only.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A tick of `CLOCK_MONOTONIC_COARSE`
/// ([clock_gettime(2)](https://man7.org/linux/man-pages/man2/clock_gettime.2.html)): 1 to 10 ms
/// long. Reading it takes no system call and a fifth of the cost of the exact time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoarseTime {
    seconds: i64,
    nanoseconds: i64,
}

impl CoarseTime {
    /// Returns the current tick.
    #[inline]
    pub(crate) fn now() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::MonotonicCoarse);
        Self {
            seconds: tv_sec,
            nanoseconds: tv_nsec,
        }
    }

    /// Returns the time as a number, never 0.
    pub(crate) fn nanoseconds(self) -> u64 {
        (self.seconds as u64 * 1_000_000_000 + self.nanoseconds as u64).max(1)
    }
}
