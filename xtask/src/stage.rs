//! A stage of the test run, and the run itself: lists of stages run side by side, and in each every
//! chosen stage in turn, whatever the outcome of the one before.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::disk;
use crate::failure::Failure;
use crate::options::TestOptions;
use crate::process_tree;
use crate::report::{Report, Row};
use crate::step::{Step, lists_at_once};
use crate::tool::{self, Tool};
use crate::watchdog::Watchdog;
use crate::workspace;

/// A stage of a run.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The name that `--stage` takes.
    pub(crate) name: &'static str,
    /// The claim that it tests.
    pub(crate) about: &'static str,
    /// The time that it should take from a clean clone with two cores. A stage that takes longer
    /// does not fail; the report shows it, and the watchdog's limit derives from it.
    pub(crate) budget: Duration,
    /// Set if it is part of `--quick`.
    pub(crate) quick: bool,
    /// Tools that it needs beside cargo.
    pub(crate) tools: &'static [Tool],
    /// The work.
    pub(crate) work: Work,
}

/// The work of a stage.
#[derive(Debug)]
pub(crate) enum Work {
    /// Commands, each of which must succeed.
    Commands(&'static [&'static str]),
    /// A function, for work that a list cannot express.
    Function(fn(&Watchdog) -> Result<(), Failure>),
}

/// Runs the chosen stages of lists that run side by side. Prints the report and returns it.
pub(crate) fn run(
    lists: &'static [&'static [Stage]],
    options: &TestOptions,
) -> Result<Report, Failure> {
    let is_chosen = |stage: &&Stage| options.selects(stage.name, stage.quick);
    let stages = || lists.iter().copied().flatten();
    process_tree::adopt_orphans();
    if options.is_whole() {
        disk::check(workspace::root())?;
    }

    let mut wanted: Vec<&Tool> = Vec::new();
    for tool in stages().filter(is_chosen).flat_map(|stage| stage.tools) {
        if !wanted.contains(&tool) {
            wanted.push(tool);
        }
    }
    tool::prepare(&wanted, !options.no_install);

    let left_out: Vec<_> = stages()
        .filter(|stage| !is_chosen(stage))
        .map(|stage| stage.name)
        .collect();
    if !left_out.is_empty() {
        let list = left_out.join(", ");
        println!("left out, as the arguments ask for: {list}");
    }
    let started = Instant::now();
    let rows = Mutex::new(Vec::new());
    lists_at_once(lists, |stage| {
        if is_chosen(&stage) {
            let row = stage.run();
            rows.lock().expect("no stage panics here").push(row);
        }
        Ok(())
    })?;
    let report = Report {
        rows: rows.into_inner().expect("no stage panics here"),
        taken: started.elapsed(),
    };
    print!("\n{report}");
    Ok(report)
}

impl Stage {
    fn run(&self) -> Row {
        let Self {
            name,
            about,
            budget,
            ..
        } = *self;
        println!("\n=== {name}: {about} (budget {} s)", budget.as_secs());
        let started = Instant::now();
        let outcome = tool::check(self.tools).and_then(|()| self.work());
        let row = Row {
            name,
            taken: started.elapsed(),
            budget,
            outcome,
        };
        println!("=== {row}");
        row
    }

    fn work(&self) -> Result<(), Failure> {
        let watchdog = Watchdog::for_budget(self.budget);
        match self.work {
            Work::Commands(lines) => lines
                .iter()
                .try_for_each(|line| Step::of_line(line).run(&watchdog)),
            Work::Function(function) => function(&watchdog),
        }
    }
}
