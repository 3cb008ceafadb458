//! The one optimized build that all stages share.
//!
//! Cargo compiles a crate once for each set of features that its selection asks for. So every stage
//! that runs optimized programs selects the same packages with the same features, and differs only
//! in the targets that it names. The features are those that tests need beside the default ones;
//! the stage `features` checks the sets that users select.

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// The packages and features of the shared build. A feature of `ibex-tests` gives `ibex-harness` its
/// own, but not the crate behind it unless it is named as well.
const SELECTION: &str = "-p ibex-tests -p ibex-examples -p ibex-cli -p quickstart \
     -p ibex-transport -p ibex-verbs -p ibex-harness -p ibex-replication -p ibex-sim -p ibex-soak --release \
     --features ibex-tests/fake-device,ibex-examples/verbs,ibex-harness/verbs,\
     ibex-replication/verbs";

/// Returns `cargo test` with these targets, and arguments for their programs behind `--`.
pub(crate) fn test(targets: &str) -> Step {
    Step::of_line(&format!("cargo test {SELECTION} {targets}"))
}

/// Builds the tests, examples and binaries that `targets` names in one call, so that both cores are
/// busy to the end.
pub(crate) fn build(targets: &str, watchdog: &Watchdog) -> Result<(), Failure> {
    Step::of_line(&format!("cargo build {SELECTION} {targets}")).run(watchdog)
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
    let path = workspace::target().join("release").join(name);
    path.to_string_lossy().into_owned()
}
