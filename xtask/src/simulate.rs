//! The deterministic simulation: two engines or up to 32, faulty wires, and one seed.
//!
//! The program is `testing/sim/src/bin/simulate.rs`.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::step::Step;
use crate::tested;
use crate::watchdog::Watchdog;

/// The program, optimized.
const OPTIMIZED: &str = "cargo run --release -p ibex-sim --bin simulate --";

/// Runs `cargo xtask simulate`, which passes its arguments to the program.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    Step::of_line(OPTIMIZED)
        .args(arguments)
        .run(&Watchdog::patient())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs enough steps for each kind of fault to occur, with a new seed each time.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    Step::new(&tested::binary("simulate"))
        .args(["--steps", "2000000"])
        .run(watchdog)
}

/// Runs the stage `simulation` of `cargo xtask torture`.
pub(crate) fn long(watchdog: &Watchdog) -> Result<(), Failure> {
    let crowd = "cargo test -p ibex-sim --release --lib ten_thousand -- --ignored";
    Step::of_line(crowd).run(watchdog)?;
    Step::of_line(OPTIMIZED)
        .args(["--steps", "100000000"])
        .run(watchdog)
}
