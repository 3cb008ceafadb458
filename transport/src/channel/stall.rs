//! How long a sender waits for room: since when, how often, how long in all.
//!
//! Written by whoever may touch the producer, one thread at a time and only where there is
//! no room; read by anyone.
#![forbid(unsafe_code)]

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::driver::Counter;

/// A sending end's waits.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// When the present wait began, as [`nanoseconds`]; 0 if there was room last.
    since: AtomicU64,
    /// What had moved then: more means that the wait is another one.
    progress: AtomicU64,
    count: Counter,
    total: Counter,
}

/// A snapshot of a sending end's waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    pub(crate) count: u64,
    /// In all, the present one included.
    pub(crate) total: Duration,
}

impl Stall {
    /// There is no room, with `progress` so far. Returns since when there is none.
    pub(super) fn no_room(&self, progress: u64) -> Instant {
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 && self.progress.load(Ordering::Relaxed) == progress {
            return instant(since);
        }
        self.room_came();
        let now = Instant::now();
        self.progress.store(progress, Ordering::Relaxed);
        self.since.store(nanoseconds(now), Ordering::Relaxed);
        self.count.add(1);
        now
    }

    /// There is room, or nobody will wait any more.
    #[inline]
    pub(super) fn room_came(&self) {
        let since = self.since.load(Ordering::Relaxed);
        if since != 0 {
            self.since.store(0, Ordering::Relaxed);
            self.total
                .add(nanoseconds(Instant::now()).saturating_sub(since));
        }
    }

    /// The waits so far.
    pub(crate) fn stalls(&self) -> Stalls {
        let since = self.since.load(Ordering::Relaxed);
        let present = match since {
            0 => 0,
            since => nanoseconds(Instant::now()).saturating_sub(since),
        };
        Stalls {
            count: self.count.get(),
            total: Duration::from_nanos(self.total.get() + present),
        }
    }
}

/// What an atomic word can hold of a time.
fn nanoseconds(time: Instant) -> u64 {
    let since_start = time.saturating_duration_since(*START);
    // Never 0, which is no time; 584 years fit.
    since_start.as_nanos() as u64 + 1
}

fn instant(nanoseconds: u64) -> Instant {
    *START + Duration::from_nanos(nanoseconds - 1)
}

/// Before any wait.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_begins_once_and_ends_with_room_or_with_progress() {
        let stall = Stall::default();
        assert_eq!(stall.stalls(), Stalls::default());
        let first = stall.no_room(7);
        assert_eq!(stall.no_room(7), first, "the same wait");
        assert_eq!(stall.stalls().count, 1);
        let second = stall.no_room(8);
        assert!(second >= first);
        assert_eq!(stall.stalls().count, 2, "something moved meanwhile");
        std::thread::sleep(Duration::from_millis(2));
        let running = stall.stalls().total;
        assert!(running >= Duration::from_millis(2));
        stall.room_came();
        let ended = stall.stalls();
        assert!(ended.total >= running);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(stall.stalls(), ended, "nobody waits");
        stall.room_came();
        assert_eq!(stall.stalls(), ended);
    }

    #[test]
    fn a_time_comes_back_from_its_word() {
        LazyLock::force(&START);
        let now = Instant::now();
        assert_eq!(instant(nanoseconds(now)), now);
    }
}
