//! The histogram of round trips, and the stopwatch that feeds it.
//!
//! Recording is one reading of the [clock], a subtraction and an increment. Values are kept in
//! ticks at three significant digits. They become nanoseconds only at the end, by the length that a
//! tick had during the run. Percentiles are those of the recorded values spread over one step of
//! the clock. For example, round trips of 85 ns under a clock of 10 ns steps are recorded as 80 or
//! 90, half of them each, and have a median of 85.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{
    check::Tally,
    clock,
    job::{Figures, Job, Mode},
};

/// A distribution of times, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The time that one in twenty stays below: the undisturbed machine.
    pub p5: f64,
    /// The time that half stay below.
    pub p50: f64,
    /// The time that nine in ten stay below.
    pub p90: f64,
    /// The time that 99 in 100 stay below.
    pub p99: f64,
    /// The time that 999 in 1000 stay below.
    pub p999: f64,
    /// The longest time.
    pub max: f64,
}

impl Percentiles {
    /// Rounds to whole nanoseconds: p5, p50, p90, p99, p99.9, max.
    #[must_use]
    pub fn rounded(&self) -> [u64; 6] {
        [self.p5, self.p50, self.p90, self.p99, self.p999, self.max].map(|ns| ns.round() as u64)
    }
}

/// The stopwatch of a measurement: started after the warm-up, pressed after every round trip
/// (latency) or only at the end (stream).
pub struct Laps {
    // The measurement.
    job: Job,

    // The whole run, on both clocks.
    start: Instant,
    start_ticks: u64,

    // Single round trips, in ticks.
    last: u64,
    lap: u64,
    round_trips: Histogram<u64>,
}

impl Laps {
    /// Creates a stopped watch. Call it before the warm-up, because it allocates.
    #[must_use]
    pub fn new(job: Job) -> Laps {
        let round_trips = Histogram::new_with_bounds(1, LONGEST_TICKS, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that hdrhistogram accepts");
        Laps {
            job,
            start: Instant::now(),
            start_ticks: 0,
            last: 0,
            lap: 0,
            round_trips,
        }
    }

    /// Starts the watch: the warm-up is over.
    pub fn start(&mut self) {
        self.start = Instant::now();
        self.start_ticks = clock::ticks();
        self.last = self.start_ticks;
    }

    /// Ends a round trip and begins the next. Call [`record`](Laps::record) afterwards.
    #[inline]
    pub fn lap(&mut self) {
        let now = clock::ticks();
        self.lap = now.wrapping_sub(self.last);
        self.last = now;
    }

    /// Adds the last lap to the histogram. Called while the next message is under way, so that it
    /// delays nothing that is timed.
    #[inline]
    pub fn record(&mut self) {
        self.round_trips.saturating_record(self.lap);
    }

    /// Stops the watch at the last message.
    #[must_use]
    pub fn stop(self) -> Stopped {
        let ticks = clock::ticks().wrapping_sub(self.start_ticks);
        let elapsed = self.start.elapsed();
        let half_tick_ns = elapsed.as_nanos() as f64 / ticks.max(1) as f64 / 2.0;
        let one_way = (self.job.mode == Mode::Latency).then(|| {
            let step = clock::step() as f64;
            let at = |quantile| half_tick_ns * spread_quantile(&self.round_trips, step, quantile);
            Percentiles {
                p5: at(0.05),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: half_tick_ns * self.round_trips.max() as f64,
            }
        });
        Stopped {
            job: self.job,
            one_way,
            elapsed,
        }
    }
}

/// A stopped watch, to which the checks of both processes are added.
#[derive(Clone, Debug)]
pub struct Stopped {
    job: Job,
    one_way: Option<Percentiles>,
    elapsed: Duration,
}

impl Stopped {
    /// Returns the figures of the run, with the checks of this process and its peer.
    #[must_use]
    pub fn figures(self, mut here: Tally, peer: &Tally) -> Figures {
        here.merge(peer);
        Figures {
            job: self.job,
            one_way: self.one_way,
            elapsed: self.elapsed,
            tally: here,
        }
    }
}

/// Returns a quantile of the recorded values, each spread evenly over one `step` around it.
fn spread_quantile(values: &Histogram<u64>, step: f64, quantile: f64) -> f64 {
    let wanted = values.len() as f64 * quantile;
    let below = |limit: f64| -> f64 {
        values
            .iter_recorded()
            .map(|bar| {
                let part = (limit - bar.value_iterated_to() as f64) / step + 0.5;
                bar.count_at_value() as f64 * part.clamp(0.0, 1.0)
            })
            .sum()
    };
    let exact = values.value_at_quantile(quantile) as f64;
    let (mut low, mut high) = ((exact - step).max(0.0), exact + step);
    for _ in 0..BISECTIONS {
        let middle = low.midpoint(high);
        if below(middle) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    low.midpoint(high).min(values.max() as f64)
}

/// Enough bisections to narrow two steps down to less than a thousandth of one.
const BISECTIONS: u32 = 12;
/// About 10 s at 5 GHz; longer times are recorded as this.
const LONGEST_TICKS: u64 = 50_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job = Job {
        mode: Mode::Latency,
        size: 8,
        iters: 3,
        flip: false,
    };

    #[test]
    fn one_way_is_half_a_lap() {
        let mut laps = Laps::new(JOB);
        laps.start();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(4));
            laps.lap();
            laps.record();
        }
        let figures = laps.stop().figures(Tally::default(), &Tally::default());
        let one_way = figures.one_way.unwrap();
        assert!(one_way.p50 >= 1.9e6, "{one_way:?}");
        assert!(one_way.p50 <= one_way.max);
        assert!(figures.elapsed >= Duration::from_millis(12));
    }

    #[test]
    fn steps_of_the_clock_average_out() {
        let mut values = Histogram::new(3).unwrap();
        for (value, count) in [(208, 500), (234, 500), (900, 5)] {
            values.record_n(value, count).unwrap();
        }
        let median = spread_quantile(&values, 26.0, 0.5);
        assert!((median - 221.0).abs() < 0.3, "{median}");
        let uneven = spread_quantile(&values, 26.0, 0.25);
        assert!((uneven - 208.0).abs() < 0.3, "{uneven}");
        assert!(spread_quantile(&values, 26.0, 0.999) >= 887.0);
        assert!(spread_quantile(&values, 26.0, 1.0) <= 900.0);
    }

    #[test]
    fn a_stream_has_no_one_way_time() {
        let mut laps = Laps::new(Job {
            mode: Mode::Stream,
            ..JOB
        });
        laps.start();
        assert_eq!(laps.stop().one_way, None);
    }
}
