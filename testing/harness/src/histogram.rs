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
    meter::Meter,
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

/// All times of a measurement, one way. Percentiles are spread as the module says.
#[derive(Clone, Debug)]
pub struct Distribution {
    round_trips: Histogram<u64>,
    half_tick_ns: f64,
    step: f64,
}

impl Distribution {
    /// Returns the time in nanoseconds that this share of all stays below.
    #[must_use]
    pub fn at(&self, quantile: f64) -> f64 {
        self.half_tick_ns * spread_quantile(&self.round_trips, self.step, quantile)
    }

    /// Returns the longest time in nanoseconds.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.half_tick_ns * self.round_trips.max() as f64
    }

    /// Returns each recorded time in nanoseconds, ascending, with the count of those up to it.
    pub fn steps(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut count = 0;
        self.round_trips.iter_recorded().map(move |bar| {
            count += bar.count_at_value();
            (self.half_tick_ns * bar.value_iterated_to() as f64, count)
        })
    }

    fn percentiles(&self) -> Percentiles {
        Percentiles {
            p5: self.at(0.05),
            p50: self.at(0.5),
            p90: self.at(0.9),
            p99: self.at(0.99),
            p999: self.at(0.999),
            max: self.max(),
        }
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

    // Round trips at fixed times: the ticks from one to the next.
    interval: Option<f64>,
    meter: Meter,
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
            interval: job.rate.map(|rate| clock::ticks_per_second() / rate as f64),
            meter: Meter::new(),
        }
    }

    /// Starts the watch: the warm-up is over.
    pub fn start(&mut self) {
        self.start = Instant::now();
        self.start_ticks = clock::ticks();
        self.last = self.start_ticks;
    }

    /// Waits for the time of the round trip with this number, from 0, if the job has a rate, and
    /// begins it.
    ///
    /// A round trip that begins late, because the last one took long, counts from when it was due:
    /// a program that asks at its own times waits that long. Its time one way is the delay and half
    /// the round trip, hence the delay counts twice here.
    #[inline]
    pub fn wait_until_due(&mut self, number: u64) {
        let Some(interval) = self.interval else {
            return;
        };
        let due = self
            .start_ticks
            .wrapping_add((number as f64 * interval) as u64);
        let mut now = clock::ticks();
        while (now.wrapping_sub(due) as i64) < 0 {
            std::hint::spin_loop();
            now = clock::ticks();
        }
        let late = now.wrapping_sub(due);
        self.last = due.wrapping_sub(late);
    }

    /// Tells the meter how many messages were timed.
    #[inline]
    pub fn count(&self, timed: u64) {
        self.meter.set(timed);
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
        let distribution = (self.job.mode == Mode::Latency).then(|| Distribution {
            round_trips: self.round_trips,
            half_tick_ns,
            step: clock::step() as f64,
        });
        Stopped {
            job: self.job,
            one_way: distribution.as_ref().map(Distribution::percentiles),
            distribution,
            elapsed,
        }
    }
}

/// A stopped watch, to which the checks of both processes are added.
#[derive(Clone, Debug)]
pub struct Stopped {
    job: Job,
    one_way: Option<Percentiles>,
    distribution: Option<Distribution>,
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
            distribution: self.distribution,
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
        rate: None,
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
    fn a_round_trip_that_begins_late_counts_from_when_it_was_due() {
        let mut laps = Laps::new(Job {
            rate: Some(1000),
            ..JOB
        });
        laps.start();
        // The first takes 8 ms, so the next seven are late, the first of them by 7 ms.
        for number in 0..2 {
            laps.wait_until_due(number);
            if number == 0 {
                std::thread::sleep(Duration::from_millis(8));
            }
            laps.lap();
            laps.record();
        }
        let figures = laps.stop().figures(Tally::default(), &Tally::default());
        let distribution = figures.distribution.unwrap();
        let times: Vec<_> = distribution.steps().collect();
        assert_eq!(times.last().unwrap().1, 2);
        assert!(times[0].0 >= 3.9e6, "{times:?}");
        assert!(distribution.max() >= 6.9e6, "{times:?}");
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
