//! Conformance: what every fabric promises under every driver, between real processes.
//!
//! Each scenario is played once per cell of the matrix, as `scenario/fabric/driver`, by
//! two processes that the kernel says are two. Another fabric joins in one line, in
//! `common/scenario.rs`. A filter chooses as with any test:
//! `cargo test --release --test conformance -- tcp/caller`.

#[path = "../common/mod.rs"]
mod common;

mod acknowledging;
mod bootstrapping;
mod carrying;
mod driving;
mod ending;
mod flowing;
mod forging;
mod guarding;
mod meeting;
mod opening;
mod reserving;
mod sharing;

use std::process::ExitCode;

use common::{scenario::Scenario, supervisor};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let scenarios: Vec<Scenario> = [
        flowing::SCENARIOS,
        carrying::SCENARIOS,
        forging::SCENARIOS,
        guarding::SCENARIOS,
        acknowledging::SCENARIOS,
        reserving::SCENARIOS,
        sharing::SCENARIOS,
        opening::SCENARIOS,
        ending::SCENARIOS,
        meeting::SCENARIOS,
        driving::SCENARIOS,
        bootstrapping::SCENARIOS,
    ]
    .concat();
    if let Some(exit) = supervisor::play_part(&scenarios) {
        return exit;
    }
    let cells = scenarios.iter().flat_map(|scenario| scenario.cells());
    let trials =
        cells.map(|cell| Trial::test(cell.to_string(), move || Ok(supervisor::supervise(cell)?)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
