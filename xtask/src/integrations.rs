//! Integrations of other software over ibex, below `integrations/`.

use std::fs;
use std::io;
use std::path::Path;

use crate::failure::Failure;
use crate::step::Step;
use crate::tested;
use crate::tool::{CLIPPY, PROMETHEUS, Tool};
use crate::watchdog::Watchdog;
use crate::workspace;

/// Tools for the stage.
pub(crate) const TOOLS: &[Tool] = &[CLIPPY, PROMETHEUS];

/// Runs the stage `integrations` of `cargo xtask test`.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    tested::at_once(&[TESTS], watchdog)?;
    by_path(watchdog)
}

const TESTS: &str = "--test carrier --test chaos --test exchanges --test exporters --test grpc --test http \
     --test joined_spans --test network --test prometheus --test store -- --skip /verbs/";

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
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::write(folder.join("Cargo.toml"), manifest)
}

/// Returns an optimized `cargo test` of all integrations with these targets, and arguments for their
/// programs behind `--`.
pub(crate) fn test(targets: &str) -> Step {
    Step::of_line(&format!("cargo test --release {PACKAGES} {targets}"))
}

const PACKAGES: &str = "-p ibex-comparison -p ibex-hyper -p ibex-iceoryx2 -p ibex-metrics -p ibex-openraft -p ibex-tonic \
     -p ibex-tracing -p raft_kv --features ibex-hyper/fake-device,ibex-iceoryx2/fake-device,\
     ibex-metrics/fake-device,ibex-openraft/fake-device,ibex-tonic/fake-device";

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
