//! The cheapest clock of this machine, for timing single round trips.
//!
//! A shared-memory round trip takes about 90 ns, and reading [`Instant`] twice
//! would be half of that. On x86-64 the time stamp counter is read directly (about 8 ns). Rules:
//!
//! 1. Ticks are compared only on the thread that read them, which is pinned, so CPUs need not be in
//!    synchrony.
//! 2. The length of a tick is measured, not looked up: [`Laps`](crate::histogram::Laps) compares
//!    ticks with [`Instant`] over the very run that it converts.
//! 3. A clock moves in steps, on some CPUs in large ones (10 ns on AMD's Zen, a tenth of such a
//!    round trip). [`step`] measures the step, and percentiles must claim that precision and no
//!    other. Over many round trips the steps average out.

use std::{
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// Returns the present time in ticks of unknown but constant length.
#[cfg(target_arch = "x86_64")]
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 CPU; Linux leaves it enabled for
    // user code unless a process forbids it to itself (PR_SET_TSC).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the present time in ticks of unknown but constant length (here nanoseconds: `Instant`
/// reads the same counter as any direct way would).
#[cfg(not(target_arch = "x86_64"))]
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Returns the ticks of a second, measured over 20 ms at the first call.
#[must_use]
pub fn ticks_per_second() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let (start, begun) = (Instant::now(), ticks());
        thread::sleep(Duration::from_millis(20));
        let passed = ticks().wrapping_sub(begun) as f64;
        passed / start.elapsed().as_secs_f64()
    })
}

/// Returns the most frequent difference between two successive readings that differ: the step of
/// the clock, or the time that a reading takes if that is longer.
#[must_use]
pub fn step() -> u64 {
    let mut steps = Vec::with_capacity(READINGS);
    let mut last = ticks();
    while steps.len() < READINGS {
        let now = ticks();
        steps.extend((now != last).then(|| now.wrapping_sub(last)));
        last = now;
    }
    steps.sort_unstable();
    let longest_run = steps.chunk_by(|a, b| a == b).max_by_key(|run| run.len());
    longest_run.map_or(1, |run| run[0])
}

const READINGS: usize = 1000;

#[cfg(test)]
mod tests {
    use super::{step, ticks};

    #[test]
    fn a_step_is_short() {
        assert!((1..10_000).contains(&step()), "{} ticks", step());
    }

    #[test]
    fn ticks_move_forward() {
        let start = ticks();
        while ticks() <= start {}
    }
}
