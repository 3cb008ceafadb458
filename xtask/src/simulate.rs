//! The deterministic simulation: two engines, or up to 32, wires that misbehave, one seed.
//!
//! The program is `transport/examples/simulate.rs`, behind a feature of that crate that
//! nobody who uses ibex sees.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;

/// `cargo xtask simulate`: the arguments are the program's.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    simulate(arguments, &Watchdog::patient())?;
    Ok(ExitCode::SUCCESS)
}

/// So many steps that each kind of fault comes often, from a new seed each time.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    simulate(&["--steps".to_string(), STEPS.to_string()], watchdog)
}

fn simulate(arguments: &[String], watchdog: &Watchdog) -> Result<(), Failure> {
    let program = "cargo run --release -p ibex-transport --features sim --example simulate --";
    Step::of_line(program).args(arguments).run(watchdog)
}

const STEPS: u64 = 10_000_000;
