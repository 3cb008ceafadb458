//! What is seen of a run: results on standard output as soon as they are there, and a bar
//! on standard error. The bar is drawn only between measurements, because the cores that it
//! would be drawn on are busy during them.

use std::{
    fmt::Display,
    io::{self, Write},
};

use ibex_harness::Error;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows which row is measured, if anybody looks.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for so many pairs of measurements. It hides itself where standard error
    /// is no terminal.
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

    /// A measurement begins.
    pub(crate) fn step(&self, row: &str, what: &str) {
        self.bar.set_message(format!("{row}: {what}"));
        self.bar.inc(1);
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

    /// All is measured.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
