//! The output of a run: results on standard output as they are measured, and a bar on standard
//! error. The bar is drawn only between measurements, because drawing would use the cores that are
//! measured.

use std::{
    fmt::Display,
    io::{self, Write},
};

use ibex_harness::Error;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows which row is being measured, if standard error is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a bar for `pairs` pairs of measurements. The bar hides itself if standard error is
    /// no terminal.
    pub(crate) fn new(pairs: usize, visible: bool) -> Progress {
        let bar = if visible {
            ProgressBar::new(2 * pairs as u64)
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{bar:30} {pos:>3}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar }
    }

    /// Marks the beginning of a measurement.
    pub(crate) fn step(&self, row: &str, what: &str) {
        self.bar.set_message(format!("{row}: {what}"));
        self.bar.inc(1);
    }

    /// Prints a line of the result, and flushes it so that a reading program gets it at once.
    pub(crate) fn print(&self, line: &impl Display) -> Result<(), Error> {
        self.bar.suspend(|| {
            let mut output = io::stdout().lock();
            writeln!(output, "{line}")
                .and_then(|()| output.flush())
                .map_err(Error::io("writing the result"))
        })
    }

    /// Prints a remark on standard error.
    pub(crate) fn note(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Removes the bar at the end.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
