//! The delay before the next attempt.
#![forbid(unsafe_code)]

use std::time::Duration;

/// Delays that double from [`FIRST`] to [`LONGEST`], each shortened by up to a
/// quarter at random, so that nodes started together do not come back together.
pub(super) struct BackOff {
    next: Duration,
}

impl BackOff {
    pub(super) fn new() -> BackOff {
        BackOff { next: FIRST }
    }

    /// Returns the next delay; `random` is a random byte.
    pub(super) fn next_delay(&mut self, random: u8) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST);
        delay - delay / 4 * u32::from(random) / 255
    }
}

/// The first delay: short enough that a peer started by the same script costs nothing visible.
const FIRST: Duration = Duration::from_millis(10);
/// The longest delay: a thousand waiting nodes are then no load to the node they wait for.
const LONGEST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut back_off = BackOff::new();
        let delays: Vec<u128> = (0..8).map(|_| back_off.next_delay(0).as_millis()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 500, 500]);
    }

    #[test]
    fn chance_shortens_a_delay_by_a_quarter_at_most() {
        for random in 0..=255 {
            let delay = BackOff::new().next_delay(random);
            assert!(delay <= FIRST && delay >= FIRST * 3 / 4, "{delay:?}");
        }
    }
}
