//! The lines of the table: a limit, what is compared to it, and their ratio.

use std::fmt;

use ibex_harness::job::Mode;

/// One line below [`HEADING`].
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// Near or far; or a dash.
    pub(crate) cores: &'a str,
    pub(crate) pairs: usize,
    pub(crate) limit: String,
    pub(crate) subject: String,
    /// The median of the pairs' ratios, then the lowest and the highest.
    pub(crate) ratio: f64,
    pub(crate) spread: [f64; 2],
    /// Lower ratios are better in latency mode, higher ones in stream mode.
    pub(crate) mode: Mode,
    /// The ratio that we want.
    pub(crate) aim: Option<f64>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [lowest, highest] = self.spread;
        write!(
            f,
            "{:32} {:6} {:>5} {:>12} {:>12} {:>7.2} {} {:18} {}",
            self.name,
            self.cores,
            self.pairs,
            self.limit,
            self.subject,
            self.ratio,
            match self.mode {
                Mode::Latency => 'v',
                Mode::Stream => '^',
            },
            format!("[{lowest:.2} .. {highest:.2}]"),
            self.aim_and_verdict(),
        )
    }
}

impl Line<'_> {
    /// What is aimed at, and whether the ratio is there.
    fn aim_and_verdict(&self) -> String {
        let Some(aim) = self.aim else {
            return "-".to_owned();
        };
        let (sign, is_met) = match self.mode {
            Mode::Latency => ("<=", self.ratio <= aim),
            Mode::Stream => (">=", self.ratio >= aim),
        };
        let verdict = if is_met { "met" } else { "MISSED" };
        format!("{sign} {aim:<4} {verdict}")
    }
}

pub(crate) const HEADING: &str = "row                              cores  pairs        limit         ibex   \
                       ratio   lowest .. highest  aim";
