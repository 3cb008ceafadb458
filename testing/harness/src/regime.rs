//! The regime, near or far: the time that a cache line takes from one of two CPUs to the other.
//!
//! Every time below a microsecond in ibex's tables is a small multiple of this one. A virtual
//! machine's CPUs may share a die (40–60 ns) or be on different dies or sockets (200–300 ns), and
//! the host may move them during a run. So each pair of measurements carries its regime, and pairs
//! of different regimes never enter the same figure.

#![forbid(unsafe_code)]

use std::{
    fmt, hint,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error,
    cores::{self, Cores},
};

/// The distance of two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// A crossing takes less than [`BOUNDARY`].
    Near,
    /// A crossing takes [`BOUNDARY`] or longer.
    Far,
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Regime::Near => "near",
            Regime::Far => "far",
        })
    }
}

/// A measured crossing of a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// Time from the store on one CPU until the other has seen it, in nanoseconds.
    pub ns: f64,
}

impl Crossing {
    /// Returns the regime: the side of [`BOUNDARY`] on which the crossing lies.
    #[must_use]
    pub fn regime(&self) -> Regime {
        if self.ns < BOUNDARY.as_nanos() as f64 {
            Regime::Near
        } else {
            Regime::Far
        }
    }
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.0} ns)", self.regime(), self.ns)
    }
}

/// The boundary between near (up to 60 ns seen) and far (from 200 ns seen), at equal ratios.
pub const BOUNDARY: Duration = Duration::from_nanos(120);

/// Measures the crossing now: two pinned threads pass one line to and fro.
///
/// Takes about 5 ms. The fastest of several batches counts, since other work on the two CPUs can
/// only slow a batch down.
pub fn measure(cores: Cores) -> Result<Crossing, Error> {
    let line = Line(AtomicU64::new(0));
    thread::scope(|scope| {
        let echo = thread::Builder::new()
            .name("regime-echo".into())
            .spawn_scoped(scope, || {
                // A thread that could not be pinned still answers, so that the other does not wait
                // forever; the error is reported afterwards.
                let pinned = cores::keep_to(&cores[1..]);
                for turn in 0..ROUND_TRIPS * BATCHES {
                    line.await_value(2 * turn + 1);
                    line.0.store(2 * turn + 2, Ordering::Release);
                }
                pinned
            })
            .map_err(Error::io("starting a thread"))?;
        let ping = thread::Builder::new()
            .name("regime-ping".into())
            .spawn_scoped(scope, || {
                let pinned = cores::keep_to(&cores[..1]);
                let fastest = (0..BATCHES).map(|batch| line.time_batch(batch)).min();
                pinned.map(|()| fastest.unwrap_or_default())
            });
        let ping = match ping {
            Ok(ping) => ping.join(),
            Err(refused) => {
                // No thread answers the echo any more, so play it to its end here.
                for batch in 0..BATCHES {
                    line.time_batch(batch);
                }
                return Err(Error::io("starting a thread")(refused));
            }
        };
        echo.join().expect("the echo does not panic")?;
        let fastest = ping.expect("the ping does not panic")?;
        Ok(Crossing {
            ns: fastest.as_nanos() as f64 / (2 * ROUND_TRIPS) as f64,
        })
    })
}

/// The line that crosses, with its neighbour, since CPUs prefetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    fn time_batch(&self, batch: u64) -> Duration {
        let start = Instant::now();
        for turn in batch * ROUND_TRIPS..(batch + 1) * ROUND_TRIPS {
            self.0.store(2 * turn + 1, Ordering::Release);
            self.await_value(2 * turn + 2);
        }
        start.elapsed()
    }

    fn await_value(&self, value: u64) {
        while self.0.load(Ordering::Acquire) != value {
            hint::spin_loop();
        }
    }
}

const ROUND_TRIPS: u64 = 1000;
const BATCHES: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_divides() {
        assert_eq!(Crossing { ns: 50.0 }.regime(), Regime::Near);
        assert_eq!(Crossing { ns: 119.9 }.regime(), Regime::Near);
        assert_eq!(Crossing { ns: 120.0 }.regime(), Regime::Far);
        assert_eq!(Crossing { ns: 250.0 }.to_string(), "far (250 ns)");
    }

    #[test]
    fn a_crossing_takes_time() {
        let Ok(cores) = cores::choose(None) else {
            return;
        };
        let crossing = measure(cores).unwrap();
        assert!(crossing.ns > 1.0, "{crossing}");
        println!("cores {cores:?}: {crossing}");
    }
}
