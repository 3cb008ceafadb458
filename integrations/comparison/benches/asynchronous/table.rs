//! The lines of the result: for people a table, for programs a JSON object each.

use std::fmt;

use serde::Serialize;

use crate::{order::Unit, rows::Row};

/// A row with the figures of its rounds.
pub(crate) struct Line {
    name: String,
    baseline_name: Option<&'static str>,
    unit: Unit,
    aim: Option<f64>,
    /// The rounds in ascending order of their ratios; never empty.
    rounds: Vec<Round>,
}

/// The figures of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) subject: f64,
    pub(crate) baseline: Option<f64>,
}

impl Round {
    /// Returns the subject as a multiple of the baseline, or the subject itself.
    fn ratio(self) -> f64 {
        self.subject / self.baseline.unwrap_or(1.0)
    }
}

impl Line {
    /// Returns the line of a row; `None` if it was never measured.
    pub(crate) fn of(row: &Row, mut rounds: Vec<Round>) -> Option<Line> {
        rounds.sort_by(|one, other| one.ratio().total_cmp(&other.ratio()));
        (!rounds.is_empty()).then(|| Line {
            name: row.name(),
            baseline_name: row.baseline.map(|order| order.baseline_name()),
            unit: row.subject.work.unit(),
            aim: row.aim,
            rounds,
        })
    }

    /// Returns the round with the median ratio, the lower one of two.
    fn median(&self) -> Round {
        self.rounds[(self.rounds.len() - 1) / 2]
    }

    /// Returns the lowest and the highest ratio.
    fn spread(&self) -> [f64; 2] {
        [
            self.rounds[0].ratio(),
            self.rounds[self.rounds.len() - 1].ratio(),
        ]
    }

    fn is_met(&self) -> Option<bool> {
        let ratio = self.median().ratio();
        self.aim.map(|aim| match self.unit.is_rate() {
            true => ratio >= aim,
            false => ratio <= aim,
        })
    }

    fn aim_and_verdict(&self) -> String {
        let (Some(aim), Some(is_met)) = (self.aim, self.is_met()) else {
            return "-".to_owned();
        };
        let sign = if self.unit.is_rate() { ">=" } else { "<=" };
        let verdict = if is_met { "met" } else { "MISSED" };
        format!("{sign} {aim:<4} {verdict}")
    }

    pub(crate) fn to_json(&self) -> String {
        let (median, [lowest, highest]) = (self.median(), self.spread());
        let object = Object {
            row: &self.name,
            unit: self.unit.name(),
            rounds: self.rounds.len(),
            baseline_name: self.baseline_name,
            baseline: median.baseline,
            ibex: median.subject,
            ratio: median.baseline.map(|_| median.ratio()),
            lowest,
            highest,
            aim: self.aim,
            is_met: self.is_met(),
        };
        serde_json::to_string(&object).expect("a line has only strings and numbers")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, [lowest, highest]) = (self.median(), self.spread());
        let none = || "-".to_owned();
        let baseline = median
            .baseline
            .map_or_else(none, |figure| self.unit.show(figure));
        let ratio = median
            .baseline
            .map_or_else(none, |_| format!("{:.2}", median.ratio()));
        let better = if self.unit.is_rate() { '^' } else { 'v' };
        write!(
            f,
            "{:52} {:14} {baseline:>12} {:>12} {ratio:>6} {better} {:18} {}",
            self.name,
            self.baseline_name.unwrap_or("-"),
            self.unit.show(median.subject),
            format!("[{lowest:.2} .. {highest:.2}]"),
            self.aim_and_verdict(),
        )
    }
}

/// A line as a program reads it.
#[derive(Serialize)]
struct Object<'a> {
    row: &'a str,
    unit: &'a str,
    rounds: usize,
    baseline_name: Option<&'a str>,
    baseline: Option<f64>,
    ibex: f64,
    ratio: Option<f64>,
    lowest: f64,
    highest: f64,
    aim: Option<f64>,
    is_met: Option<bool>,
}

/// The head of the table.
pub(crate) const HEADING: &str = "\
row                                                  baseline           baseline         ibex   \
ratio   lowest .. highest  aim";

/// Explanation of the columns, above the table.
pub(crate) const LEGEND: &str = "\
Two processes on the same two cores; in each round every figure is measured once, in turn.
ratio: ibex to the baseline of the same round; the median of the rounds, with the lowest and the
highest. v: a time (median of all exchanges of the round) or a cost, lower is better. ^: a rate,
higher is better. Rows without a baseline have an aim for the figure itself.";
