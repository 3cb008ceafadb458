//! Reports of runs: each a line of a table or a JSON object; and the ratios of runs that took
//! turns.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    log::Fsync,
    options::{Options, Store},
    run::Outcome,
};

/// The heading above [`Line`]s.
pub(crate) const HEADING: &str = "\
carrier    records/s    MiB/s       p50       p90       p99       max  CPU/record  checksum   write    sync";

/// A run as a line of the table. Times are in microseconds.
pub(crate) struct Line<'a>(pub(crate) &'a Outcome);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.0;
        let shares = &outcome.shares;
        write!(
            f,
            "{:8} {:>11.0} {:>8.0} {:>9.1} {:>9.1} {:>9.1} {:>9.0} {:>11.1} {:>8.1}% {:>6.1}% {:>6.1}%",
            outcome.carrier,
            outcome.records_per_second(),
            outcome.bytes_per_second() / MIB,
            outcome.latency_us(0.5),
            outcome.latency_us(0.9),
            outcome.latency_us(0.99),
            outcome.latency_us(1.0),
            outcome.processor_us(),
            shares.checksum * 100.0,
            shares.write * 100.0,
            shares.sync * 100.0,
        )
    }
}

/// The comparison of a run's logs.
pub(crate) struct Logs<'a>(pub(crate) &'a Outcome);

impl fmt::Display for Logs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { tip, replicas, .. } = self.0;
        match &self.0.differing()[..] {
            [] => write!(
                f,
                "all {} logs read back, and equal: {tip}",
                replicas.len() + 1
            ),
            differing => {
                write!(f, "LOGS DIFFER: the primary's has {tip}")?;
                differing
                    .iter()
                    .try_for_each(|one| write!(f, "; replica {}'s has {}", one.replica, one.tip))
            }
        }
    }
}

/// A run as a JSON object.
pub(crate) fn to_json(options: &Options, outcome: &Outcome) -> Value {
    let pace = options.pace();
    let fsync = match (options.store(), options.fsync) {
        (Store::Memory, _) => Value::Null,
        (_, Fsync::Record) => json!("record"),
        (_, Fsync::Group) => json!("group"),
        (_, Fsync::Interval(interval)) => json!(interval.as_millis()),
    };
    let setup = options.setup();
    json!({
        "carrier": outcome.carrier,
        "driver": (outcome.carrier != "sockets").then_some(setup.driver),
        "authenticated": setup.keys.is_some() && outcome.carrier != "sockets",
        "wait": setup.waiting,
        "fsync": fsync,
        "outstanding": pace.outstanding,
        "group": pace.group,
        "record_bytes": options.record_bytes(),
        "records": outcome.records,
        "records_per_s": outcome.records_per_second(),
        "bytes_per_s": outcome.bytes_per_second(),
        "latency_ns": {
            "p50": outcome.latency_ns.value_at_quantile(0.5),
            "p90": outcome.latency_ns.value_at_quantile(0.9),
            "p99": outcome.latency_ns.value_at_quantile(0.99),
            "p999": outcome.latency_ns.value_at_quantile(0.999),
            "max": outcome.latency_ns.max(),
        },
        "processor_us_per_record": outcome.processor_us(),
        "shares": outcome.shares,
        "settled_s": outcome.settled_seconds,
        "replicas_killed": outcome.killed,
        "replicas_lost": outcome.lost,
        "tip": outcome.tip,
        "replicas": outcome.replicas,
        "logs_equal": outcome.differing().is_empty(),
    })
}

/// The aim for a median of ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aim {
    /// A lower bound, for a rate.
    AtLeast(f64),
    /// An upper bound, for a time.
    AtMost(f64),
}

impl Aim {
    fn is_met_by(self, ratio: &Ratio) -> bool {
        match self {
            Aim::AtLeast(least) => ratio.median >= least,
            Aim::AtMost(most) => ratio.median <= most,
        }
    }
}

/// Ratios with their aim, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Aimed {
    /// The ratios of the runs.
    pub(crate) ratio: Ratio,
    /// The aim for their median.
    pub(crate) aim: Option<Aim>,
}

impl Aimed {
    /// Returns the ratios as a JSON object, with `aim` and `missed`, which are null without an aim.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = json!(self.ratio);
        object["aim"] = json!(self.aim);
        object["missed"] = json!(self.aim.map(|aim| !aim.is_met_by(&self.ratio)));
        object
    }
}

impl fmt::Display for Aimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Aimed { ratio, aim } = self;
        write!(f, "{ratio}")?;
        let Some(aim) = aim else {
            return Ok(());
        };
        let missed = match aim.is_met_by(ratio) {
            true => "",
            false => ", MISSED",
        };
        match aim {
            Aim::AtLeast(least) => write!(f, " (aim >= {least:.1}{missed})"),
            Aim::AtMost(most) => write!(f, " (aim <= {most:.1}{missed})"),
        }
    }
}

/// Ratios of runs that took turns: the median, the lowest and the highest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    /// The median; the lower one of two.
    pub(crate) median: f64,
    /// The lowest.
    pub(crate) lowest: f64,
    /// The highest.
    pub(crate) highest: f64,
    /// The number of ratios.
    pub(crate) pairs: usize,
}

impl Ratio {
    /// Summarizes ratios, of which there must be at least one.
    pub(crate) fn of(ratios: impl Iterator<Item = f64>) -> Ratio {
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        Ratio {
            median: ratios[(ratios.len() - 1) / 2],
            lowest: ratios[0],
            highest: ratios[ratios.len() - 1],
            pairs: ratios.len(),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ratio {
            median,
            lowest,
            highest,
            pairs,
        } = self;
        write!(f, "{median:.2} [{lowest:.2} .. {highest:.2}] of {pairs}")
    }
}

const MIB: f64 = (1 << 20) as f64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_on_the_wrong_side_of_its_aim_is_told() {
        let aimed = |aim| Aimed {
            ratio: Ratio::of([0.4, 0.95, 3.0].into_iter()),
            aim,
        };
        let ratio = "0.95 [0.40 .. 3.00] of 3";
        assert_eq!(aimed(None).to_string(), ratio);
        assert_eq!(aimed(None).to_json()["missed"], Value::Null);
        let cases = [
            (Aim::AtLeast(0.9), "(aim >= 0.9)", false),
            (Aim::AtLeast(1.0), "(aim >= 1.0, MISSED)", true),
            (Aim::AtMost(1.0), "(aim <= 1.0)", false),
            (Aim::AtMost(0.5), "(aim <= 0.5, MISSED)", true),
        ];
        for (aim, says, missed) in cases {
            let aimed = aimed(Some(aim));
            assert_eq!(aimed.to_string(), format!("{ratio} {says}"));
            assert_eq!(aimed.to_json()["missed"], missed);
            assert_eq!(aimed.to_json()["median"], 0.95);
        }
    }
}
