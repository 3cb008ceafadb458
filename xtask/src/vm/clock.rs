//! The rate of the guest's clock.
//!
//! The guest counts time in ticks of this machine's time-stamp counter, which the emulator passes
//! on. A kernel measures the rate while it boots, with a timer that the emulator serves late when
//! this machine is busy. In one boot of many the clock was twenty times too fast, and every wait
//! for a time to pass ended at once. So the kernel's arguments state the rate.
#![allow(unsafe_code, reason = "the counter is read by an intrinsic")]

use std::time::{Duration, Instant};

/// Returns the ticks per millisecond of this machine's time-stamp counter, if it has one.
pub(super) fn ticks_per_millisecond() -> Option<u64> {
    let began = Reading::take()?;
    std::thread::sleep(MEASURED);
    let ended = Reading::take()?;
    rate(&began, &ended)
}

/// The counter at a moment.
struct Reading {
    ticks: u64,
    at: Instant,
}

impl Reading {
    /// Takes several readings, and returns the one with the least time between its two looks at the
    /// clock.
    fn take() -> Option<Self> {
        let readings = (0..READINGS).map(|_| {
            let before = Instant::now();
            let ticks = ticks()?;
            let after = Instant::now();
            Some((after - before, Self { ticks, at: before }))
        });
        let readings = readings.collect::<Option<Vec<_>>>()?;
        let best = readings.into_iter().min_by_key(|(took, _)| *took)?;
        Some(best.1)
    }
}

fn rate(began: &Reading, ended: &Reading) -> Option<u64> {
    let ticks = u128::from(ended.ticks.checked_sub(began.ticks)?);
    let nanoseconds = ended.at.duration_since(began.at).as_nanos();
    u64::try_from((ticks * 1_000_000).checked_div(nanoseconds)?).ok()
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every processor of this architecture that Linux runs on has the instruction.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

/// The time between two readings, long compared to the error of a reading, a fraction of a
/// microsecond.
const MEASURED: Duration = Duration::from_millis(50);
const READINGS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_ticks_by_time() {
        let at = Instant::now();
        let began = Reading { ticks: 7, at };
        let ended = |ticks| Reading {
            ticks,
            at: at + Duration::from_millis(50),
        };
        assert_eq!(rate(&began, &ended(100_000_007)), Some(2_000_000));
        assert_eq!(rate(&began, &ended(6)), None);
        assert_eq!(rate(&began, &Reading { ticks: 8, at }), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn this_machine_ticks_as_fast_now_as_a_moment_later() {
        // The clock may be set meanwhile, but not each time.
        let rates = [(); 5].map(|()| ticks_per_millisecond().unwrap());
        let is_near = |pair: &[u64]| pair[0].abs_diff(pair[1]) < pair[0] / 100;
        assert!(rates.windows(2).any(is_near), "{rates:?}");
    }
}
