//! The one build that all stages share.
//!
//! Cargo compiles a crate once for each profile and each set of features that its selection asks
//! for. So every stage that runs programs selects the same packages with the same features in the
//! profile `dev`, and differs only in the targets that it names. The features are those that tests
//! need beside the default ones; the stage `features` checks the sets that users select.
//! Optimizing takes twice as long as these tests do, so only `cargo xtask torture` has it done.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// The packages and features of the shared build: all but the benchmarks, which need crates that
/// nothing else needs. A feature of `ibex-tests` gives `ibex-harness` its own, but not the crate
/// behind it unless it is named as well.
const SELECTION: &str = "--workspace --exclude ibex-benches \
     --features ibex-tests/fake-device,ibex-examples/verbs,ibex-harness/verbs,\
     ibex-replication/verbs";

/// What cargo is told beside, once [`optimize`] was called.
static OPTIMIZED: AtomicBool = AtomicBool::new(false);

/// Has everything built by the profile `release` from now on, for `cargo xtask torture`.
pub(crate) fn optimize() {
    OPTIMIZED.store(true, Ordering::Relaxed);
}

/// Returns cargo's option for the profile, and the folder of its programs.
fn profile() -> [&'static str; 2] {
    match OPTIMIZED.load(Ordering::Relaxed) {
        true => ["--release", "release"],
        false => ["", "debug"],
    }
}

/// Returns `cargo test` with these targets, and arguments for their programs behind `--`.
pub(crate) fn test(targets: &str) -> Step {
    Step::of_line(&format!(
        "cargo test {SELECTION} {} {targets}",
        profile()[0]
    ))
}

/// Builds the tests, examples and binaries that `targets` names in one call, so that both cores are
/// busy to the end.
pub(crate) fn build(targets: &str, watchdog: &Watchdog) -> Result<(), Failure> {
    Step::of_line(&format!(
        "cargo build {SELECTION} {} {targets}",
        profile()[0]
    ))
    .run(watchdog)
}

/// Builds a test and returns the path of its program.
pub(crate) fn test_program(name: &str, watchdog: &Watchdog) -> Result<String, Failure> {
    test(&format!("--test {name}")).build_program(watchdog)
}

/// Builds all examples and the programs beside them.
pub(crate) fn build_programs(watchdog: &Watchdog) -> Result<(), Failure> {
    build(
        "--examples --bin ibex --bin quickstart --bin replication --bin soak",
        watchdog,
    )
}

/// Returns the path of an example, once [`build_programs`] has built it.
pub(crate) fn example(name: &str) -> String {
    binary(&format!("examples/{name}"))
}

/// Returns the path of the program `soak`, once [`build_programs`] has built it.
pub(crate) fn soak() -> String {
    binary("soak")
}

/// Returns the path of a binary, once it is built.
pub(crate) fn binary(name: &str) -> String {
    let path = workspace::target().join(profile()[1]).join(name);
    path.to_string_lossy().into_owned()
}
