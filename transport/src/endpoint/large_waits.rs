//! How long a wait for a large message in shared memory looks before it sleeps: about as long as the
//! other side takes to write or read such a message, unless that was in vain lately.

use std::time::{Duration, Instant};

/// What one end has learned from its waits. Every end has one, so it is small.
#[derive(Debug, Default)]
pub(crate) struct LargeWaits {
    /// How many microseconds the present wait looks at least.
    lasts: u16,
    /// Waits in a row that took longer than such a message does, up to a limit.
    misses: u8,
    /// Waits since then that have not looked so long.
    skipped: u8,
}

impl LargeWaits {
    /// Begins a wait for a message of `bytes`, or for the release of such a message. Returns the time.
    pub(crate) fn begin(&mut self, bytes: usize) -> Instant {
        match u32::from(self.skipped) + 1 < 1 << self.misses {
            true => self.skipped += 1,
            // It is at most `LONGEST`.
            false => self.lasts = time_of(bytes).as_micros() as u16,
        }
        Instant::now()
    }

    /// Returns how long the present wait looks at least.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_micros(self.lasts.into())
    }

    /// Ends the wait that began then.
    pub(crate) fn end(&mut self, began: Instant) {
        if self.lasts > 0 {
            self.took(began.elapsed());
        }
    }

    fn took(&mut self, took: Duration) {
        self.misses = match took < self.lasts() {
            true => 0,
            false => (self.misses + 1).min(MOST_DOUBLINGS),
        };
        (self.lasts, self.skipped) = (0, 0);
    }
}

/// Returns a time in which a message of `bytes` is written or read, however far apart the cores are.
pub(crate) fn time_of(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 / BYTES_PER_NANOSECOND).min(LONGEST)
}

const BYTES_PER_NANOSECOND: u64 = 4;
const LONGEST: Duration = Duration::from_millis(1);
/// After so many misses in a row, one wait in 2⁶ looks for longer.
const MOST_DOUBLINGS: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;
    const LASTS: Duration = Duration::from_micros(262);
    const IN_TIME: Duration = Duration::from_micros(261);

    /// Lets a wait take `took`. Returns how long it was to look.
    fn wait(waits: &mut LargeWaits, took: Duration) -> Duration {
        let _began = waits.begin(BYTES);
        let lasts = waits.lasts();
        if !lasts.is_zero() {
            waits.took(took);
        }
        assert_eq!(waits.lasts(), Duration::ZERO);
        lasts
    }

    #[test]
    fn waits_that_end_in_time_look_as_long_as_a_message_takes() {
        let mut waits = LargeWaits::default();
        for _ in 0..100 {
            assert_eq!(wait(&mut waits, IN_TIME), LASTS);
        }
    }

    #[test]
    fn waits_that_last_longer_look_ever_more_seldom() {
        let mut waits = LargeWaits::default();
        let looks = (0..1_000).filter(|_| !wait(&mut waits, LASTS).is_zero());
        let looks = looks.collect::<Vec<_>>();
        assert_eq!(looks[..5], [0, 2, 6, 14, 30]);
        assert!(looks.windows(2).skip(6).all(|pair| pair[1] - pair[0] == 64));
        // One that ends in time is enough to look at each again.
        while wait(&mut waits, IN_TIME).is_zero() {}
        assert_eq!(wait(&mut waits, IN_TIME), LASTS);
    }

    #[test]
    fn the_longest_message_has_a_bounded_time() {
        assert_eq!(time_of(0), Duration::ZERO);
        assert_eq!(time_of(usize::MAX), LONGEST);
    }
}
