//! The lines of the result, each with a limit, the subject that is compared to it, and their ratio:
//! a table for people, JSON objects for programs, rows for BENCHMARKS.md.

use std::fmt;

use ibex_harness::{
    job::Mode,
    row::{bytes, count, duration},
};
use serde::Serialize;

use crate::verbs_cost::Cost;

/// The form of the lines on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A table, with remarks.
    Table,
    /// One JSON object for each line.
    Json,
    /// One row of the table in BENCHMARKS.md for each row.
    Markdown,
}

/// The printer of lines on standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    form: Form,
    instructions: [Option<f64>; 2],
}

impl Table {
    pub(crate) fn new(form: Form, instructions: [Option<f64>; 2]) -> Self {
        Self { form, instructions }
    }

    /// Returns whether a row has one line, of the distance of cores that has the most pairs.
    pub(crate) fn has_one_line_for_a_row(self) -> bool {
        self.form == Form::Markdown
    }

    /// Returns the counted instructions of a message of this kind, if any were given.
    pub(crate) fn instructions(self, kind: usize) -> Option<f64> {
        self.instructions[kind]
    }

    /// Prints the heading above the lines.
    pub(crate) fn print_heading(self) {
        if self.form == Form::Table {
            println!("{HEADING}");
        }
    }

    pub(crate) fn print(self, line: &Line<'_>) {
        match self.form {
            Form::Json => println!("{}", line.to_json()),
            Form::Markdown => println!("{}", line.to_markdown()),
            Form::Table => {
                println!("{line}");
                if let Some(cost) = &line.cost {
                    println!("{cost}");
                }
            }
        }
    }

    /// Prints a remark for people.
    pub(crate) fn note(self, note: impl fmt::Display) {
        match self.form {
            Form::Table => println!("{note}"),
            Form::Json | Form::Markdown => eprintln!("{note}"),
        }
    }
}

/// A line below [`HEADING`].
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// `near` or `far` cores, or a dash.
    pub(crate) cores: &'a str,
    pub(crate) pairs: usize,
    /// The limit, and below it the subject, of the pair with the median ratio.
    pub(crate) limit: f64,
    pub(crate) subject: f64,
    pub(crate) unit: Unit,
    /// The median of the pairs' ratios, then the lowest and the highest.
    pub(crate) ratio: f64,
    pub(crate) spread: [f64; 2],
    /// The lowest and the highest ratio of the limit to itself, if it was measured twice.
    pub(crate) noise: Option<[f64; 2]>,
    /// Lower ratios are better in latency mode, higher ones in stream mode.
    pub(crate) mode: Mode,
    /// The ratio to reach.
    pub(crate) aim: Option<f64>,
    /// The cost of one of ibex's messages, if it was counted.
    pub(crate) cost: Option<Cost>,
}

/// The unit of the limit and the subject.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Nanoseconds,
    BytesPerSecond,
    MessagesPerSecond,
}

impl<'a> Line<'a> {
    /// Returns the line of these pairs of limit and subject; `None` if there are none.
    pub(crate) fn of(
        name: &'a str,
        (unit, mode): (Unit, Mode),
        mut pairs: Vec<[f64; 2]>,
    ) -> Option<Line<'a>> {
        let ratio = |pair: [f64; 2]| pair[1] / pair[0];
        pairs.sort_by(|one, other| ratio(*one).total_cmp(&ratio(*other)));
        let (&first, &last) = (pairs.first()?, pairs.last()?);
        let median = pairs[(pairs.len() - 1) / 2];
        Some(Line {
            name,
            cores: "-",
            pairs: pairs.len(),
            limit: median[0],
            subject: median[1],
            unit,
            ratio: ratio(median),
            spread: [ratio(first), ratio(last)],
            noise: None,
            mode,
            aim: None,
            cost: None,
        })
    }

    /// Returns whether the ratio meets the aim.
    fn is_met(&self) -> Option<bool> {
        let aim = self.aim?;
        Some(match self.mode {
            Mode::Latency => self.ratio <= aim,
            Mode::Stream => self.ratio >= aim,
        })
    }

    fn aim_and_verdict(&self) -> String {
        let (Some(aim), Some(is_met)) = (self.aim, self.is_met()) else {
            return "-".to_owned();
        };
        let sign = match self.mode {
            Mode::Latency => "<=",
            Mode::Stream => ">=",
        };
        let verdict = if is_met { "met" } else { "MISSED" };
        format!("{sign} {aim:<4} {verdict}")
    }

    /// Returns the row: a missed aim makes its ratio bold, and a time's ratio has a sign. A last cell
    /// says that the cores were far.
    fn to_markdown(&self) -> String {
        let [lowest, highest] = self.spread;
        let (sign, unit) = match self.mode {
            Mode::Latency => ("≤", " ×"),
            Mode::Stream => ("≥", ""),
        };
        let ratio = match self.is_met() {
            Some(false) => format!("**{:.2}{unit}**", self.ratio),
            _ => format!("{:.2}{unit}", self.ratio),
        };
        let aim = self.aim.map(|aim| format!("{sign} {aim}{unit}"));
        let far = if self.cores == "far" {
            " far cores |"
        } else {
            ""
        };
        let figure = |value| self.unit.show(value).replace(" us", " µs");
        format!(
            "| {} | {} | {} | {ratio} [{lowest:.2} .. {highest:.2}] | {} |{far}",
            self.name,
            figure(self.subject),
            figure(self.limit),
            aim.unwrap_or_default(),
        )
    }

    fn to_json(&self) -> String {
        let [lowest, highest] = self.spread;
        let object = Object {
            row: self.name.trim_start(),
            cores: (self.cores != "-").then_some(self.cores),
            pairs: self.pairs,
            unit: self.unit.name(),
            limit: self.limit,
            ibex: self.subject,
            ratio: self.ratio,
            lowest,
            highest,
            limit_to_itself: self.noise,
            aim: self.aim,
            is_met: self.is_met(),
            per_message: self.cost,
        };
        serde_json::to_string(&object).expect("a line has only strings and numbers")
    }
}

/// A line as a JSON object.
#[derive(Serialize)]
struct Object<'a> {
    row: &'a str,
    cores: Option<&'a str>,
    pairs: usize,
    unit: &'a str,
    limit: f64,
    ibex: f64,
    ratio: f64,
    lowest: f64,
    highest: f64,
    limit_to_itself: Option<[f64; 2]>,
    aim: Option<f64>,
    is_met: Option<bool>,
    per_message: Option<Cost>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |spread: [f64; 2]| format!("[{:.2} .. {:.2}]", spread[0], spread[1]);
        write!(
            f,
            "{:58} {:6} {:>5} {:>12} {:>12} {:>7.2} {} {:16} {:16} {}",
            self.name,
            self.cores,
            self.pairs,
            self.unit.show(self.limit),
            self.unit.show(self.subject),
            self.ratio,
            match self.mode {
                Mode::Latency => 'v',
                Mode::Stream => '^',
            },
            spread(self.spread),
            self.noise.map_or("-".to_owned(), spread),
            self.aim_and_verdict(),
        )
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::BytesPerSecond => "bytes/s",
            Unit::MessagesPerSecond => "messages/s",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => duration(value.round() as u64),
            Unit::BytesPerSecond => format!("{}/s", bytes(value)),
            Unit::MessagesPerSecond => format!("{}/s", count(value)),
        }
    }
}

const HEADING: &str = "row                                                        cores  pairs        \
                       limit         ibex   ratio   lowest..highest  limit to itself  aim";
