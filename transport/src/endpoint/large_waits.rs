//! How long a wait for a large message in shared memory looks before it sleeps: about as long as the
//! other side takes to write or read such a message, unless that was in vain lately.

use std::time::{Duration, Instant};

/// What one end has learned from its waits.
#[derive(Debug, Default)]
pub(crate) struct LargeWaits {
    /// When the present wait began, and how long it looks at least.
    present: Option<(Instant, Duration)>,
    /// Waits in a row that took longer than such a message does.
    misses: u32,
    /// Waits since then that have not looked so long.
    skipped: u32,
}

impl LargeWaits {
    /// Begins a wait for a message of `bytes`, or for the release of such a message.
    pub(crate) fn begin(&mut self, bytes: usize) {
        self.begin_at(Instant::now(), bytes);
    }

    fn begin_at(&mut self, now: Instant, bytes: usize) {
        if self.skipped + 1 < 1 << self.misses.min(MOST_DOUBLINGS) {
            self.skipped += 1;
            return;
        }
        self.present = Some((now, time_of(bytes)));
    }

    /// Returns how long the present wait looks at least.
    pub(crate) fn lasts(&self) -> Duration {
        self.present.map_or(Duration::ZERO, |(_, lasts)| lasts)
    }

    /// Ends the wait.
    pub(crate) fn end(&mut self) {
        if self.present.is_some() {
            self.end_at(Instant::now());
        }
    }

    fn end_at(&mut self, now: Instant) {
        let Some((began, lasts)) = self.present.take() else {
            return;
        };
        self.skipped = 0;
        self.misses = match now - began < lasts {
            true => 0,
            false => self.misses + 1,
        };
    }
}

/// Returns a time in which a message of `bytes` is written or read, however far apart the cores are.
pub(crate) fn time_of(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 / BYTES_PER_NANOSECOND).min(LONGEST)
}

const BYTES_PER_NANOSECOND: u64 = 4;
const LONGEST: Duration = Duration::from_millis(1);
/// After so many misses in a row, one wait in 2⁶ looks for longer.
const MOST_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;

    /// Lets a wait take `took`. Returns how long it was to look.
    fn wait(waits: &mut LargeWaits, took: Duration) -> Duration {
        let now = Instant::now();
        waits.begin_at(now, BYTES);
        let lasts = waits.lasts();
        waits.end_at(now + took);
        assert_eq!(waits.lasts(), Duration::ZERO);
        lasts
    }

    #[test]
    fn waits_that_end_in_time_look_as_long_as_a_message_takes() {
        let mut waits = LargeWaits::default();
        for _ in 0..100 {
            let took = time_of(BYTES) - Duration::from_nanos(1);
            assert_eq!(wait(&mut waits, took), time_of(BYTES));
        }
    }

    #[test]
    fn waits_that_last_longer_look_ever_more_seldom() {
        let mut waits = LargeWaits::default();
        let looks = (0..1_000).filter(|_| !wait(&mut waits, time_of(BYTES)).is_zero());
        let looks = looks.collect::<Vec<_>>();
        assert_eq!(looks[..5], [0, 2, 6, 14, 30]);
        assert!(looks.windows(2).skip(6).all(|pair| pair[1] - pair[0] == 64));
        // One that ends in time is enough to look at each again.
        while wait(&mut waits, Duration::ZERO).is_zero() {}
        assert_eq!(wait(&mut waits, Duration::ZERO), time_of(BYTES));
    }

    #[test]
    fn the_longest_message_has_a_bounded_time() {
        assert_eq!(time_of(0), Duration::ZERO);
        assert_eq!(time_of(usize::MAX), LONGEST);
    }
}
