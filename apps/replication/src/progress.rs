//! What is seen of a run: results on standard output, a bar and what happens to replicas on
//! standard error.

use std::{
    fmt::Display,
    io::{self, Write},
};

use ibex_harness::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how far a run is, if anybody looks.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for runs of so many records each, if that is known. It hides itself where
    /// standard error is no terminal.
    pub(crate) fn new(records: Option<u64>, visible: bool) -> Progress {
        // Drawn seldom: the cores that it would be drawn on are busy.
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

    /// A run begins.
    pub(crate) fn begin(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.reset();
    }

    /// So many records are acknowledged.
    pub(crate) fn acknowledged(&self, records: u64) {
        self.bar.set_position(records);
    }

    /// A line of the result, which whoever reads our output gets at once.
    pub(crate) fn print(&self, line: &impl Display) -> Result<(), Error> {
        self.bar.suspend(|| {
            let mut output = io::stdout().lock();
            writeln!(output, "{line}")
                .and_then(|()| output.flush())
                .map_err(Error::io("writing the result"))
        })
    }

    /// Something worth knowing, on standard error.
    pub(crate) fn note(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// All is done.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
