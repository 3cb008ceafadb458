//! The build that all stages share that run programs.
//!
//! Cargo compiles a crate once for each set of features that its selection asks for. So every such
//! stage selects the same packages with the same features, and differs only in the targets that it
//! names. The features are those that tests need beside the default ones; the stage `features`
//! checks the sets that users select.

use crate::failure::Failure;
use crate::step::{Step, side_by_side};
use crate::watchdog::Watchdog;
use crate::workspace;

/// The packages and features of the shared build. A feature of `ibex-tests` gives `ibex-harness` its
/// own, but not the crate behind it unless it is named as well.
const SELECTION: &str = "--profile tested --workspace --exclude xtask --exclude ibex-benches \
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

/// Builds the tests of all these lists in one call; arguments for their programs stand behind ` --
/// `.
pub(crate) fn build_tests(lists: &[&str], watchdog: &Watchdog) -> Result<(), Failure> {
    let tests = lists.iter().filter_map(|list| list.split(" -- ").next());
    let tests: Vec<_> = tests.collect();
    test(&format!("--no-run {}", tests.join(" "))).run(watchdog)
}

/// Builds tests, then runs concurrent lists of them, each to its end.
pub(crate) fn at_once(lists: &[&str], watchdog: &Watchdog) -> Result<(), Failure> {
    build_tests(lists, watchdog)?;
    // A test whose helper thread has panicked may hang, and what is kept back is lost then.
    let shown = |step: Step| step.env("RUST_TEST_NOCAPTURE", "1");
    let step = |list| [shown(test(&format!("--no-fail-fast {list}")))];
    let lists: Vec<_> = lists.iter().map(step).collect();
    let lists: Vec<_> = lists.iter().map(|list| &list[..]).collect();
    side_by_side(&lists, watchdog)
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
    let path = workspace::target().join("tested").join(name);
    path.to_string_lossy().into_owned()
}
