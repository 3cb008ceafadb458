//! The pause before an attempt is repeated.

use std::time::Duration;

use crate::random;

/// Pauses between attempts that fail: the first is short, each is twice as long as the one before,
/// up to the longest. Up to a half of each is taken away at random, so that those who failed
/// together do not all come back at the same moment.
///
/// ```
/// use std::time::Duration;
///
/// use ibex_base::BackOff;
///
/// const BACK_OFF: BackOff = BackOff::new(Duration::from_millis(10), Duration::from_secs(1));
///
/// assert_eq!(BACK_OFF.pause(0), Duration::ZERO);
/// assert!(BACK_OFF.pause(1) <= Duration::from_millis(10));
/// assert!(BACK_OFF.pause(100) >= Duration::from_millis(500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    first: Duration,
    longest: Duration,
}

impl BackOff {
    /// Creates a back-off with these bounds.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the longest pause.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the pause after this many failures in a row. There is none before the first.
    ///
    /// If the kernel refuses random bytes, the pause is not shortened.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let mut chance = [0];
        let _ = random::fill(&mut chance);
        self.pause_by(failures, chance[0])
    }

    /// Returns the pause that [`pause`](Self::pause) returns where `chance` is its random byte.
    #[must_use]
    pub fn pause_by(&self, failures: u32, chance: u8) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let whole = self.first.saturating_mul(factor).min(self.longest);
        whole - whole / 2 * u32::from(chance) / 255
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK_OFF: BackOff = BackOff::new(Duration::from_millis(10), Duration::from_millis(500));

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pause = |failures| BACK_OFF.pause_by(failures, 0).as_millis();
        let pauses: Vec<u128> = (0..9).map(pause).collect();
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 500, 500]);
        for failures in [31, 32, 33, 64, u32::MAX] {
            assert_eq!(pause(failures), 500, "{failures}");
        }
    }

    #[test]
    fn chance_shortens_a_pause_by_a_half_at_most() {
        for chance in 0..=u8::MAX {
            for failures in 1..20 {
                let whole = BACK_OFF.pause_by(failures, 0);
                let pause = BACK_OFF.pause_by(failures, chance);
                assert!(whole / 2 <= pause && pause <= whole, "{pause:?}");
            }
        }
        assert_eq!(BACK_OFF.pause_by(1, u8::MAX), Duration::from_millis(5));
    }

    #[test]
    fn pauses_differ() {
        let pauses: Vec<_> = (0..64).map(|_| BACK_OFF.pause(20)).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }
}
