//! The output of a run: results on standard output, and on standard error a bar and the events of
//! replicas.

use std::{
    fmt::Display,
    io::{self, Write},
};

use ibex_harness::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows the progress of a run, if standard error is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a bar for runs of `records` each, if that number is known. The bar hides itself if
    /// standard error is no terminal.
    pub(crate) fn new(records: Option<u64>, visible: bool) -> Progress {
        // The bar is drawn seldom, because drawing uses the cores that are measured.
        let target = if visible {
            ProgressDrawTarget::stderr_with_hz(4)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = match records {
            Some(records) => ProgressBar::with_draw_target(Some(records), target),
            None => ProgressBar::with_draw_target(None, target),
        };
        let style = ProgressStyle::with_template("{msg:24} {bar:30} {pos:>9}/{len} {per_sec}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar }
    }

    /// Marks the beginning of a run.
    pub(crate) fn begin(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.reset();
    }

    /// Shows the number of acknowledged records.
    pub(crate) fn acknowledged(&self, records: u64) {
        self.bar.set_position(records);
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
