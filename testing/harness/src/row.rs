//! A line of a result, and numbers as people read them.

#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    histogram::Percentiles,
    job::{Figures, Mode},
    regime::Regime,
};

/// The parts of a row's name beside the [`Job`](crate::job::Job).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The fabric that carried the messages.
    pub fabric: String,
    /// The driver of the engine.
    pub driver: String,
    /// The codec of the messages.
    pub codec: String,
}

/// One-way times in whole nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the percentiles")]
pub struct OneWay {
    pub p5: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl From<Percentiles> for OneWay {
    fn from(times: Percentiles) -> OneWay {
        let [p5, p50, p90, p99, p999, max] = times.rounded();
        OneWay {
            p5,
            p50,
            p90,
            p99,
            p999,
            max,
        }
    }
}

/// A measurement beside its limit. The field names are those of the JSON object.
///
/// Missing values are `null`: one-way times of a stream, and raw figures and the regime between two
/// hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The fabric that carried the messages.
    pub fabric: String,
    /// The driver of the engine.
    pub driver: String,
    /// The codec of the messages.
    pub codec: String,
    /// Ping-pong or stream.
    pub mode: Mode,
    /// Payload of a message, in bytes.
    pub size: usize,
    /// Round trips or messages that were timed.
    pub iters: u64,
    /// Round trips that began per second, at fixed times. One-way times then count from when the
    /// message was due.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rate_per_s: Option<u64>,
    /// One-way times: half a round trip.
    pub one_way_ns: Option<OneWay>,
    /// Messages per second and direction.
    pub msgs_per_s: f64,
    /// Payload bytes per second and direction.
    pub bytes_per_s: f64,
    /// The median one-way time of the limit.
    pub raw_one_way_ns_p50: Option<u64>,
    /// The rate of the limit, per direction.
    pub raw_bytes_per_s: Option<f64>,
    /// The distance of the two cores.
    pub regime: Option<Regime>,
    /// The core of this process, and that of its peer if that is on this host.
    pub cores: Vec<usize>,
    /// Set if every payload byte that was sent was read and compared.
    pub bytes_touched: bool,
    /// `ok`, or the number of damaged messages and a description of the first.
    pub data_check: String,
    /// Present if several ping-pongs ran at once. Rates are then of all together, and times and
    /// iterations those of the pair with the median rate.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pairs: Option<Pairs>,
    /// The ratio of the measurement to its limit, from the unrounded figures.
    #[serde(skip)]
    pub ratio: Option<f64>,
}

/// Several ping-pongs or streams at once, and how evenly they were served.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// The number of pairs.
    pub count: usize,
    /// I/O threads of each node.
    pub io_threads: usize,
    /// Messages per second and direction of the slowest pair.
    pub slowest_msgs_per_s: f64,
    /// Messages per second and direction of the fastest pair.
    pub fastest_msgs_per_s: f64,
    /// The rate of the fastest as a multiple of the slowest's; 1 is perfectly fair.
    pub fairness: f64,
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            count,
            io_threads,
            fairness,
            ..
        } = self;
        write!(
            f,
            "{count} pairs over {io_threads} I/O threads, the fastest {fairness:.2} x the slowest"
        )
    }
}

impl Row {
    /// Creates the row of several pairs that ran at once, between nodes with `io_threads`.
    ///
    /// # Panics
    /// If there are no pairs.
    #[must_use]
    pub fn of_pairs(
        subject: Subject,
        cores: &[usize],
        figures: &[Figures],
        io_threads: usize,
    ) -> Row {
        let mut by_rate: Vec<_> = figures.iter().collect();
        by_rate.sort_by(|a, b| a.messages_per_second().total_cmp(&b.messages_per_second()));
        let rates = by_rate.iter().map(|one| one.messages_per_second());
        let rates: Vec<f64> = rates.collect();
        let (slowest, fastest) = (rates[0], rates[rates.len() - 1]);
        let mut median = by_rate[by_rate.len() / 2].clone();
        let damaged = figures.iter().find(|one| one.tally.faults > 0);
        if let Some(damaged) = damaged {
            median.tally = damaged.tally.clone();
        }
        Row {
            msgs_per_s: rates.iter().sum(),
            bytes_per_s: figures.iter().map(Figures::bytes_per_second).sum(),
            bytes_touched: figures.iter().all(Figures::bytes_touched),
            pairs: Some(Pairs {
                count: figures.len(),
                io_threads,
                slowest_msgs_per_s: slowest,
                fastest_msgs_per_s: fastest,
                fairness: fastest / slowest,
            }),
            ..Row::new(subject, cores, &median, None)
        }
    }

    /// Creates the row of a measurement, with its `limit` if there is one.
    #[must_use]
    pub fn new(
        subject: Subject,
        cores: &[usize],
        figures: &Figures,
        limit: Option<(&Figures, Option<Regime>)>,
    ) -> Row {
        let tally = &figures.tally;
        let data_check = match &tally.first_fault {
            None => "ok".to_owned(),
            Some(first) => format!("failed: {} damaged, the first: {first}", tally.faults),
        };
        Row {
            fabric: subject.fabric,
            driver: subject.driver,
            codec: subject.codec,
            mode: figures.job.mode,
            size: figures.job.size,
            iters: figures.job.iters,
            rate_per_s: figures.job.rate,
            one_way_ns: figures.one_way.map(OneWay::from),
            msgs_per_s: figures.messages_per_second(),
            bytes_per_s: figures.bytes_per_second(),
            raw_one_way_ns_p50: limit
                .and_then(|(limit, _)| limit.one_way)
                .map(|times| OneWay::from(times).p50),
            raw_bytes_per_s: limit.map(|(limit, _)| limit.bytes_per_second()),
            regime: limit.and_then(|(_, regime)| regime),
            cores: cores.to_vec(),
            bytes_touched: figures.bytes_touched(),
            data_check,
            pairs: None,
            ratio: limit.map(|(limit, _)| figures.ratio_to(limit)),
        }
    }

    /// Returns whether everything that was sent arrived undamaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.bytes_touched && self.data_check == "ok"
    }

    /// Returns the row as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a row has only strings, numbers and fixed names")
    }
}

/// Formats a time with about three digits: `45 ns`, `5.31 us`.
#[must_use]
pub fn duration(ns: u64) -> String {
    scaled(ns as f64, 1000.0, &[" ns", " us", " ms", " s"])
}

/// Formats a size in powers of two: `64 B`, `1 MiB`.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, 1024.0, &[" B", " KiB", " MiB", " GiB"])
}

/// Formats a count per second: `30.5 M`.
#[must_use]
pub fn count(count: f64) -> String {
    scaled(count, 1000.0, &["", " k", " M", " G"])
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.5 would be printed as 1000.
    while value >= base - 0.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = match value {
        _ if value.fract() == 0.0 => 0,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{check::Tally, job::Job};

    fn row(mode: Mode) -> Row {
        let job = Job {
            mode,
            size: 64,
            iters: 1_000_000,
            flip: false,
            rate: None,
        };
        let times = Percentiles {
            p5: 58.0,
            p50: 61.4,
            p90: 70.0,
            p99: 100.0,
            p999: 200.0,
            max: 5e6,
        };
        let figures = Figures {
            job,
            one_way: (mode == Mode::Latency).then_some(times),
            distribution: None,
            elapsed: Duration::from_millis(125),
            tally: Tally {
                bytes: job.bytes_to_check(),
                ..Tally::default()
            },
        };
        let mut limit = figures.clone();
        limit.one_way = figures
            .one_way
            .map(|times| Percentiles { p50: 40.0, ..times });
        let subject = Subject {
            fabric: "shm".into(),
            driver: "caller".into(),
            codec: "raw".into(),
        };
        Row::new(
            subject,
            &[0, 1],
            &figures,
            Some((&limit, Some(Regime::Near))),
        )
    }

    #[test]
    fn json_has_exactly_the_documented_fields() {
        assert_eq!(
            row(Mode::Latency).to_json(),
            r#"{"fabric":"shm","driver":"caller","codec":"raw","mode":"latency","size":64,"iters":1000000,"one_way_ns":{"p5":58,"p50":61,"p90":70,"p99":100,"p999":200,"max":5000000},"msgs_per_s":8000000.0,"bytes_per_s":512000000.0,"raw_one_way_ns_p50":40,"raw_bytes_per_s":512000000.0,"regime":"near","cores":[0,1],"bytes_touched":true,"data_check":"ok"}"#
        );
        assert!(row(Mode::Stream).to_json().contains(r#""one_way_ns":null"#));
    }

    #[test]
    fn pairs_add_up_and_say_how_evenly_they_were_served() {
        let figures = |seconds| Figures {
            job: Job {
                mode: Mode::Latency,
                size: 64,
                iters: 1000,
                flip: false,
                rate: None,
            },
            one_way: None,
            distribution: None,
            elapsed: Duration::from_secs(seconds),
            tally: Tally {
                bytes: 2 * 1100 * 64,
                ..Tally::default()
            },
        };
        let subject = || Subject {
            fabric: "tcp".into(),
            driver: "threads".into(),
            codec: "raw".into(),
        };
        let mut all = [1, 4, 2].map(figures);
        let row = Row::of_pairs(subject(), &[0, 1], &all, 2);
        assert!(row.is_sound());
        assert_eq!(row.msgs_per_s, 1750.0);
        let json = row.to_json();
        let says = r#""pairs":{"count":3,"io_threads":2,"slowest_msgs_per_s":250.0,"fastest_msgs_per_s":1000.0,"fairness":4.0}"#;
        assert!(json.contains(says), "{json}");
        assert!(
            row.pairs
                .unwrap()
                .to_string()
                .ends_with("the fastest 4.00 x the slowest")
        );
        all[1].tally.fault(&"torn");
        assert!(!Row::of_pairs(subject(), &[0, 1], &all, 2).is_sound());
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(5312), "5.31 us");
        assert_eq!(bytes(1048576.0), "1 MiB");
        assert_eq!(bytes(35.25e9), "32.8 GiB");
        assert_eq!(count(999_999.9), "1.00 M");
        assert_eq!(count(0.0), "0");
    }
}
