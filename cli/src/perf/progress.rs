//! The output of a run: results on standard output as they are measured, a bar and lines of the
//! running measurement on standard error. The bar is drawn only between measurements, because
//! drawing would use the cores that are measured.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ibex_harness::row::{bytes, count};
use ibex_harness::{Error, cores, meter};
use indicatif::{ProgressBar, ProgressStyle};

/// Shows which row is being measured, if standard error is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The time between lines of a measurement; `None` for no lines.
    interval: Option<Duration>,
    /// The cores that this process may use, since a measuring thread has but one.
    allowed: Vec<usize>,
}

impl Progress {
    /// Creates a bar for this many rows. It counts rows and not measurements, because a row is
    /// measured more often on a machine that changes. The bar hides itself if standard error is no
    /// terminal.
    pub(crate) fn new(
        rows: usize,
        visible: bool,
        interval: Option<Duration>,
        allowed: &[usize],
    ) -> Self {
        let bar = match visible {
            true => ProgressBar::new(rows as u64),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{bar:30} {pos:>3}/{len} rows {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            bar,
            interval,
            allowed: allowed.to_vec(),
        }
    }

    /// Measures, and prints a line at each interval meanwhile.
    pub(crate) fn during<R>(
        &self,
        row: &str,
        what: &str,
        size: usize,
        measure: impl FnOnce() -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.bar.set_message(format!("{row}: {what}"));
        let Some(interval) = self.interval else {
            return measure();
        };
        thread::scope(|scope| {
            let (done, end) = mpsc::channel::<()>();
            scope.spawn(move || self.report(interval, &format!("{row}: {what}"), size, &end));
            let measured = measure();
            drop(done);
            measured
        })
    }

    /// Prints lines until the sender of `end` is dropped.
    fn report(&self, interval: Duration, name: &str, size: usize, end: &mpsc::Receiver<()>) {
        let _ = cores::keep_to(&self.allowed);
        let (start, mut last, mut timed) = (Instant::now(), Instant::now(), 0);
        while let Err(mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(interval) {
            let (now, all) = (Instant::now(), meter::timed());
            let seconds = now.duration_since(last).as_secs_f64();
            let rate = all.saturating_sub(timed) as f64 / seconds;
            (last, timed) = (now, all);
            // Nothing is timed before the warm-up is over, and when the measurement ends.
            if all == 0 {
                continue;
            }
            self.note(&format!(
                "{name}: {:.0} s: {}/s, {}/s",
                start.elapsed().as_secs_f64(),
                count(rate),
                bytes(rate * size as f64)
            ));
        }
    }

    /// Marks the end of a row, measured or failed.
    pub(crate) fn row_is_over(&self) {
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
