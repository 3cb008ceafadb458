//! Integrations of other software over ibex: the workspace `integrations/`, which is built
//! separately.

use crate::failure::Failure;
use crate::step::Step;
use crate::tool::{CLIPPY, PROMETHEUS, Tool};
use crate::watchdog::Watchdog;

/// Tools for the stage.
pub(crate) const TOOLS: &[Tool] = &[CLIPPY, PROMETHEUS];

/// Runs the stage `integrations` of `cargo xtask test`.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    test("--all-targets --no-run").run(watchdog)?;
    test("--no-fail-fast -- --skip /verbs/").run(watchdog)
}

/// Returns `cargo test` with these targets, and arguments for their programs behind `--`.
///
/// Every call selects the same packages and features, so that all share one build. Clippy compiles
/// it: as rustc's driver it makes programs as well, and hundreds of dependencies need not be
/// checked once more for it alone.
pub(crate) fn test(targets: &str) -> Step {
    let line = format!("cargo test {MANIFEST} --workspace --release {FEATURES} {targets}");
    Step::of_line(&line)
        .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
        // The words of `cargo clippy -- -D warnings`, as it passes them on.
        .env(
            "CLIPPY_ARGS",
            "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
        )
}

/// Builds a test and returns the path of its program.
pub(crate) fn test_program(name: &str, watchdog: &Watchdog) -> Result<String, Failure> {
    test(&format!("--test {name}")).build_program(watchdog)
}

const MANIFEST: &str = "--manifest-path integrations/Cargo.toml";
/// Features that tests need beside the default ones.
const FEATURES: &str = "--features ibex-hyper/fake-device,ibex-iceoryx2/fake-device,ibex-metrics/fake-device,ibex-openraft/fake-device,\
     ibex-tonic/fake-device";
