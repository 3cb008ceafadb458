//! The results of the stages, as a table.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use crate::failure::Failure;

/// The result of a stage.
#[derive(Debug)]
pub(crate) struct Row {
    /// The stage.
    pub(crate) name: &'static str,
    /// The time that it took.
    pub(crate) taken: Duration,
    /// The time that it should take; the line shows the excess.
    pub(crate) budget: Duration,
    /// The outcome.
    pub(crate) outcome: Result<(), Failure>,
}

/// All stages that have run.
#[derive(Debug)]
pub(crate) struct Report {
    /// The stages, in the order in which they ended.
    pub(crate) rows: Vec<Row>,
    /// The time of the whole run, which is less than the sum of its stages if these ran side by
    /// side.
    pub(crate) taken: Duration,
}

impl Report {
    /// Returns the number of failed stages.
    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|row| row.outcome.is_err()).count()
    }

    /// Returns the exit status of the run: success, if no stage failed.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self.failed() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (taken, budget) = (self.taken.as_secs_f64(), self.budget.as_secs());
        let outcome = if self.outcome.is_ok() {
            "passed"
        } else {
            "FAILED"
        };
        write!(
            f,
            "{:<12} {outcome} {taken:>7.1} s of {budget:>4} s",
            self.name
        )?;
        if let Some(over) = self
            .taken
            .checked_sub(self.budget)
            .filter(|over| !over.is_zero())
        {
            let over = over.as_secs_f64();
            write!(
                f,
                "  ({over:.1} s over its budget, which alone fails nothing)"
            )?;
        }
        Ok(())
    }
}

/// Formats the table, each failure, and on the last line the counts alone.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        writeln!(f, "{:<19} {:>7.1} s", "all", self.taken.as_secs_f64())?;
        for row in &self.rows {
            if let Err(failure) = &row.outcome {
                writeln!(f, "{}: {failure}", row.name)?;
            }
        }
        let failed = self.failed();
        writeln!(f, "{} passed, {failed} failed", self.rows.len() - failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_stand_alone_on_the_last_line() {
        let row = |name, millis, outcome| Row {
            name,
            taken: Duration::from_millis(millis),
            budget: Duration::from_secs(10),
            outcome,
        };
        let rows = vec![
            row("fmt", 1_250, Ok(())),
            row("doc", 10_000, Ok(())),
            row("loom", 11_500, Ok(())),
            row("unit", 12_000, Err(Failure::new("`cargo test` failed"))),
        ];
        let taken = Duration::from_millis(23_500);
        let report = Report { rows, taken };
        assert_eq!(
            report.to_string(),
            "fmt          passed     1.2 s of   10 s\n\
             doc          passed    10.0 s of   10 s\n\
             loom         passed    11.5 s of   10 s  (1.5 s over its budget, which alone fails nothing)\n\
             unit         FAILED    12.0 s of   10 s  (2.0 s over its budget, which alone fails nothing)\n\
             all                    23.5 s\n\
             unit: `cargo test` failed\n\
             3 passed, 1 failed\n"
        );
    }
}
