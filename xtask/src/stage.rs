//! A stage of the test run, and the run itself: every chosen stage in turn,
//! whatever became of the one before.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::options::TestOptions;
use crate::process_tree;
use crate::report::{Report, Row};
use crate::step::Step;
use crate::tool::{self, Tool};
use crate::watchdog::Watchdog;

/// One stage.
#[derive(Debug)]
pub(crate) struct Stage {
    /// What `--stage` takes.
    pub(crate) name: &'static str,
    /// What it shows.
    pub(crate) about: &'static str,
    /// What it may take from a clean clone with two cores. Nothing fails by
    /// taking longer; the report shows it, and the watchdog is set by it.
    pub(crate) budget: Duration,
    /// Whether it is part of `--quick`.
    pub(crate) quick: bool,
    /// What it needs beside cargo.
    pub(crate) tools: &'static [Tool],
    /// What it does.
    pub(crate) work: Work,
}

/// What a stage does.
#[derive(Debug)]
pub(crate) enum Work {
    /// These commands, each of which must succeed.
    Commands(&'static [&'static str]),
    /// Something that needs more than a list.
    Function(fn(&Watchdog) -> Result<(), Failure>),
}

/// Runs the chosen of these stages and prints the report.
pub(crate) fn run(stages: &'static [Stage], options: &TestOptions) -> Result<ExitCode, Failure> {
    let chosen: Vec<_> = stages
        .iter()
        .filter(|stage| options.selects(stage.name, stage.quick))
        .collect();
    process_tree::adopt_orphans();

    let mut wanted: Vec<&Tool> = Vec::new();
    for tool in chosen.iter().flat_map(|stage| stage.tools) {
        if !wanted.contains(&tool) {
            wanted.push(tool);
        }
    }
    tool::prepare(&wanted, !options.no_install);

    let left_out: Vec<_> = stages
        .iter()
        .filter(|stage| !options.selects(stage.name, stage.quick))
        .map(|stage| stage.name)
        .collect();
    if !left_out.is_empty() {
        let list = left_out.join(", ");
        println!("left out, as the arguments ask for: {list}");
    }
    let mut report = Report::default();
    for stage in chosen {
        report.add(stage.run());
    }
    print!("\n{report}");
    Ok(if report.failed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Stage {
    fn run(&'static self) -> Row {
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
