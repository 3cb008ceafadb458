//! Integrations of other software over ibex: the workspace `integrations/`, which is built
//! separately.

use std::fs;
use std::io;
use std::path::Path;

use crate::failure::Failure;
use crate::step::Step;
use crate::tool::{CLIPPY, PROMETHEUS, Tool};
use crate::watchdog::Watchdog;
use crate::workspace;

/// Tools for the stage.
pub(crate) const TOOLS: &[Tool] = &[CLIPPY, PROMETHEUS];

/// Runs the stage `integrations` of `cargo xtask test`: all tests, in the folder and the profile in
/// which the stages before it have built most dependencies.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    let target = workspace::target();
    // The comparison of async programs is a benchmark, whose baselines nothing else needs.
    let line = format!(
        "cargo test --profile tested {MANIFEST} --workspace --exclude ibex-comparison {FEATURES} \
         --no-fail-fast -- --skip /verbs/"
    );
    Step::of_line(&line)
        .linted()
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .run(watchdog)?;
    by_path(watchdog)
}

/// Runs the stage `integrations` of `cargo xtask torture`: everything, as optimized programs.
pub(crate) fn optimized(watchdog: &Watchdog) -> Result<(), Failure> {
    test("--all-targets --no-run").run(watchdog)?;
    test("--no-fail-fast -- --skip /verbs/").run(watchdog)
}

/// Has cargo read a crate outside of the clone that names ibex and every integration by path, as
/// README tells users to.
fn by_path(watchdog: &Watchdog) -> Result<(), Failure> {
    let folder = workspace::target().join("outside");
    let written = write_user(&folder);
    written.map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    // `cargo metadata` would want the crates of all platforms, which nothing has downloaded.
    let step = Step::of_line("cargo tree --quiet").in_directory(&folder);
    match step.capture(watchdog)?.status.success() {
        true => Ok(()),
        false => Err(Failure::new(
            "a crate outside of the clone cannot use ibex and its integrations by path",
        )),
    }
}

fn write_user(folder: &Path) -> io::Result<()> {
    let root = workspace::root();
    let mut manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nibex = {{ path = {root:?} }}\n"
    );
    for entry in fs::read_dir(root.join("integrations"))? {
        let path = entry?.path();
        let Ok(text) = fs::read_to_string(path.join("Cargo.toml")) else {
            continue;
        };
        let name = text.lines().find_map(|line| line.strip_prefix("name = "));
        if let Some(name) = name.filter(|_| path.join("README.md").exists()) {
            manifest += &format!("{} = {{ path = {path:?} }}\n", name.trim_matches('"'));
        }
    }
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/lib.rs"), "")?;
    fs::copy(
        root.join("integrations/Cargo.lock"),
        folder.join("Cargo.lock"),
    )?;
    fs::write(folder.join("Cargo.toml"), manifest)
}

/// Returns an optimized `cargo test` with these targets, and arguments for their programs behind
/// `--`. Every call selects the same packages and features, so that all share one build.
pub(crate) fn test(targets: &str) -> Step {
    let line = format!("cargo test {MANIFEST} --workspace --release {FEATURES} {targets}");
    Step::of_line(&line).linted()
}

/// Builds a test and returns the path of its program.
pub(crate) fn test_program(name: &str, watchdog: &Watchdog) -> Result<String, Failure> {
    test(&format!("--test {name}")).build_program(watchdog)
}

const MANIFEST: &str = "--manifest-path integrations/Cargo.toml";
/// Features that tests need beside the default ones.
const FEATURES: &str = "--features ibex-hyper/fake-device,ibex-iceoryx2/fake-device,ibex-metrics/fake-device,ibex-openraft/fake-device,\
     ibex-tonic/fake-device";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_outside_names_every_integration() {
        let folder = workspace::target().join("outside-test");
        write_user(&folder).unwrap();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for name in [
            "hyper", "iceoryx2", "metrics", "openraft", "tonic", "tracing",
        ] {
            assert!(
                manifest.contains(&format!("\nibex-{name} = ")),
                "{manifest}"
            );
        }
    }
}
