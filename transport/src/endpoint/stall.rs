//! Stalls of a sender that waits for room: the start of the present one, their number and their
//! total duration.
//!
//! The thread that may touch the producer writes this state, one thread at a time and only if there
//! is no room. Any thread reads it.
#![forbid(unsafe_code)]

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_base::sync::{AtomicBool, AtomicU64};

use crate::{clock, counter::Counter};

/// A sending end's waits.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// Time at which the present wait began, as [`nanoseconds`]; 0 if there was room last.
    since: AtomicU64,
    /// The progress when the wait began. A higher value means that this is another wait.
    progress: AtomicU64,
    /// True if the wait is for this end's own engine, which has yet to send earlier messages.
    is_for_engine: AtomicBool,
    /// True if the notice was given.
    is_notified: AtomicBool,
    count: Counter,
    total: Counter,
}

/// Duration of a reported wait that is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recovered(pub(crate) Duration);

/// A snapshot of a sending end's waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    pub(crate) count: u64,
    /// Total duration of the waits, the present one included.
    pub(crate) total: Duration,
}

impl Stall {
    /// Returns whether a wait was under way, and nothing has moved since. `progress` returns the
    /// progress that matters to a wait that is for this end's own engine, if its argument is true,
    /// and otherwise for the peer.
    pub(crate) fn goes_on(&self, progress: impl FnOnce(bool) -> u64) -> bool {
        self.since.load(Ordering::Relaxed) != 0
            && self.progress.load(Ordering::Relaxed) == progress(self.is_for_engine())
    }

    /// Returns whether the present wait, or the last one, is for this end's own engine.
    pub(crate) fn is_for_engine(&self) -> bool {
        self.is_for_engine.load(Ordering::Relaxed)
    }

    /// Returns for how long the present wait lasts.
    pub(crate) fn lasts(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then(|| clock::now().saturating_duration_since(instant(since)))
    }

    /// Begins a wait for room at the given `progress`.
    pub(crate) fn begin(&self, is_for_engine: bool, progress: u64) {
        self.is_for_engine.store(is_for_engine, Ordering::Relaxed);
        self.progress.store(progress, Ordering::Relaxed);
        let now = nanoseconds(clock::now());
        self.since.store(now, Ordering::Relaxed);
        self.count.add(1);
    }

    /// Returns the time at which the present wait is to be reported, if it was not reported yet.
    pub(crate) fn notice_at(&self) -> Option<Instant> {
        let since = self.since.load(Ordering::Relaxed);
        let is_silent = since != 0 && !self.is_notified.load(Ordering::Relaxed);
        is_silent.then(|| instant(since) + NOTICE)
    }

    /// Returns, once, the start of the present wait if the wait is to be reported now.
    pub(crate) fn take_notice(&self) -> Option<Instant> {
        let notice_at = self.notice_at()?;
        // The engine may report on behalf of a task at the same time; only one of them does.
        let is_due = notice_at <= clock::now() && !self.is_notified.swap(true, Ordering::Relaxed);
        is_due.then(|| notice_at - NOTICE)
    }

    /// Ends the wait, because there is room or the channel is over.
    #[inline]
    pub(crate) fn end(&self) -> Option<Recovered> {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            return None;
        }
        self.since.store(0, Ordering::Relaxed);
        let waited = nanoseconds(clock::now()).saturating_sub(since);
        self.total.add(waited);
        let was_notified = self.is_notified.load(Ordering::Relaxed);
        self.is_notified.store(false, Ordering::Relaxed);
        was_notified.then(|| Recovered(Duration::from_nanos(waited)))
    }

    /// The waits so far.
    pub(crate) fn stalls(&self) -> Stalls {
        let since = self.since.load(Ordering::Relaxed);
        let present = match since {
            0 => 0,
            since => nanoseconds(clock::now()).saturating_sub(since),
        };
        Stalls {
            count: self.count.get(),
            total: Duration::from_nanos(self.total.get() + present),
        }
    }
}

/// A wait that lasts this long is reported.
pub(crate) const NOTICE: Duration = Duration::from_secs(1);

/// Converts a time to an atomic word.
fn nanoseconds(time: Instant) -> u64 {
    let since_start = time.saturating_duration_since(clock::start());
    // Never 0, which means "no time". The word holds 584 years.
    since_start.as_nanos() as u64 + 1
}

fn instant(nanoseconds: u64) -> Instant {
    clock::start() + Duration::from_nanos(nanoseconds - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::StoppedClock;

    #[test]
    fn a_wait_is_counted_until_there_is_room() {
        let clock = StoppedClock::stop();
        let stall = Stall::default();
        assert_eq!(stall.stalls(), Stalls::default());
        stall.begin(false, 7);
        assert!(stall.goes_on(|_| 7), "the same wait");
        assert!(!stall.goes_on(|_| 8), "something moved meanwhile");
        clock.advance(Duration::from_millis(2));
        let running = stall.stalls();
        assert_eq!(running.count, 1);
        assert_eq!(running.total, Duration::from_millis(2));
        assert_eq!(stall.lasts(), Some(running.total));
        assert_eq!(stall.end(), None, "nobody was told of it");
        let ended = stall.stalls();
        assert_eq!(ended.total, running.total);
        clock.advance(Duration::from_millis(2));
        assert_eq!(
            (stall.stalls(), stall.lasts()),
            (ended, None),
            "nobody waits"
        );
        assert_eq!(stall.end(), None);
    }

    #[test]
    fn a_long_wait_is_told_of_once_and_so_is_its_end() {
        let clock = StoppedClock::stop();
        let stall = Stall::default();
        assert_eq!(stall.notice_at(), None);
        stall.begin(false, 0);
        let notice_at = stall.notice_at().expect("it is not told of");
        assert_eq!(stall.take_notice(), None, "nor long");
        clock.advance(NOTICE);
        assert_eq!(stall.take_notice(), Some(notice_at - NOTICE));
        assert_eq!((stall.take_notice(), stall.notice_at()), (None, None));
        let Recovered(waited) = stall.end().expect("it was told of");
        assert_eq!(waited, NOTICE);
        stall.begin(false, 1);
        assert!(stall.notice_at().is_some(), "another wait");
        assert_eq!(stall.end(), None);
    }

    #[test]
    fn a_time_comes_back_from_its_word() {
        let time = clock::start() + NOTICE;
        assert_eq!(instant(nanoseconds(time)), time);
    }
}
