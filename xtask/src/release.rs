//! The stages of `cargo xtask release-check`: whether the crates can be published, and what a
//! change of them means for those who depend on them.

use std::fs;
use std::time::Duration;

use crate::failure::Failure;
use crate::figures;
use crate::mutated_copy;
use crate::rustdoc;
use crate::stage::{Stage, Work};
use crate::step::Step;
use crate::tool::{self, CARGO_DENY, CARGO_HACK, CARGO_SEMVER_CHECKS};
use crate::watchdog::Watchdog;
use crate::workspace;

pub(crate) const STAGES: &[&[Stage]] = &[&[
    Stage {
        name: "package",
        about: "every crate is packaged without a warning, with its licences and its README",
        budget: Duration::from_secs(60),
        quick: false,
        tools: &[],
        work: Work::Function(package),
    },
    Stage {
        name: "reference",
        about: "the reference builds as docs.rs builds it, with the features that an item needs",
        budget: Duration::from_secs(60),
        quick: false,
        tools: &[],
        work: Work::Function(reference),
    },
    Stage {
        name: "versions",
        about: "the oldest versions of dependencies that the manifests admit build",
        budget: Duration::from_secs(120),
        quick: false,
        tools: &[],
        work: Work::Function(oldest_versions),
    },
    Stage {
        name: "features",
        about: "every pair of features of the facade builds",
        budget: Duration::from_secs(600),
        quick: false,
        tools: &[CARGO_HACK],
        work: Work::Commands(&[
            "cargo hack clippy -p ibex --lib --feature-powerset --depth 2 \
             --exclude-features default -- -D warnings",
            // The objects that channels need, without those of the feature `all`.
            "cargo clippy -p ibex-verbs --lib --features libibverbs -- -D warnings",
            // The example of the verbs crate that newcomers run, on a machine without a device.
            "cargo run -p ibex-verbs --features fake --example rc_pingpong",
        ]),
    },
    Stage {
        name: "names",
        about: "the public names are those that are recorded",
        budget: Duration::from_secs(120),
        quick: false,
        tools: &[],
        work: Work::Commands(&["cargo test -p xtask --bins -- --ignored public_names"]),
    },
    Stage {
        name: "figures",
        about: "the figures of README.md and BENCHMARKS.md are of the present code, and the same",
        budget: Duration::from_secs(60),
        quick: false,
        tools: &[],
        work: Work::Function(figures::check),
    },
    Stage {
        name: "dependencies",
        about: "licences and sources of all dependencies are those of deny.toml",
        budget: Duration::from_secs(60),
        quick: false,
        tools: &[CARGO_DENY],
        work: Work::Commands(&["cargo deny --workspace check bans licenses sources"]),
    },
    Stage {
        name: "advisories",
        about: "no dependency has a known vulnerability; needs the RustSec database",
        budget: Duration::from_secs(60),
        quick: false,
        tools: &[CARGO_DENY],
        work: Work::Commands(&["cargo deny --workspace check advisories"]),
    },
    Stage {
        name: "semver",
        about: "the version says what has changed since the last release",
        budget: Duration::from_secs(300),
        quick: false,
        tools: &[],
        work: Work::Function(semver),
    },
]];

/// The published crates.
const CRATES: [&str; 16] = [
    "ibex",
    "ibex-base",
    "ibex-bootstrap",
    "ibex-calls",
    "ibex-codec",
    "ibex-core",
    "ibex-derive",
    "ibex-inspect",
    "ibex-io",
    "ibex-log",
    "ibex-peers",
    "ibex-protocol",
    "ibex-ring",
    "ibex-tls",
    "ibex-transport",
    "ibex-verbs",
];

/// The published integrations, which are released after those above.
const INTEGRATIONS: [&str; 5] = [
    "ibex-hyper",
    "ibex-iceoryx2",
    "ibex-metrics",
    "ibex-tonic",
    "ibex-tracing",
];

fn package(watchdog: &Watchdog) -> Result<(), Failure> {
    package_all(&CRATES, watchdog)?;
    package_all(&INTEGRATIONS, watchdog)
}

fn package_all(crates: &[&str], watchdog: &Watchdog) -> Result<(), Failure> {
    // Without a lock file, which would need crates that are not published yet.
    let packages = format!("-p {}", crates.join(" -p "));
    // Warnings come on standard error.
    let line =
        format!("cargo package --no-verify --exclude-lockfile --allow-dirty {packages} 2>&1");
    let said = Step::new("sh").args(["-c", &line]).capture(watchdog)?;
    let is_warning = |line: &&str| line.starts_with("warning");
    if let Some(warning) = said.stdout.lines().find(is_warning) {
        return Err(Failure::new(format!("cargo package warns: {warning}")));
    }
    if !said.status.success() {
        return Err(Failure::new(format!(
            "cargo package failed: {}",
            said.stdout
        )));
    }
    for name in crates {
        let list = Step::of_line(&format!("cargo package --list --allow-dirty -p {name}"));
        let files = list.capture(watchdog)?.stdout;
        for needed in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            if !files.lines().any(|file| file == needed) {
                return Err(Failure::new(format!("{name} is packaged without {needed}")));
            }
        }
    }
    Ok(())
}

fn reference(watchdog: &Watchdog) -> Result<(), Failure> {
    let unstable =
        rustdoc::unstable().map_err(|error| Failure::new(format!("rustdoc's script: {error}")))?;
    Step::of_line("cargo doc -p ibex --no-deps --features bytes,tls-graviola,tls-ring,tokio,tower")
        .env("RUSTDOC", unstable)
        .add_flags("RUSTDOCFLAGS", "-D warnings --cfg docsrs")
        .run(watchdog)
}

/// Builds the facade in a copy of the sources, where each direct dependency has the oldest version
/// that its manifest admits.
fn oldest_versions(watchdog: &Watchdog) -> Result<(), Failure> {
    let copy = workspace::target().join("oldest");
    mutated_copy::copy_sources(workspace::root(), &copy)
        .map_err(|error| Failure::new(format!("no copy in {}: {error}", copy.display())))?;
    let manifest = copy.join("Cargo.toml").to_string_lossy().into_owned();
    Step::of_line("cargo -Z direct-minimal-versions update --manifest-path")
        .arg(&manifest)
        .env("RUSTC_BOOTSTRAP", "1")
        .run(watchdog)?;
    Step::of_line("cargo check -p ibex --lib --features bytes,tls-graviola,tls-ring,tokio,tower")
        .args(["--manifest-path", &manifest])
        .env("CARGO_TARGET_DIR", workspace::target().to_string_lossy())
        .run(watchdog)?;
    // The next copy begins from the versions that are tested.
    let lock = copy.join("Cargo.lock");
    fs::remove_file(&lock).map_err(|error| Failure::new(format!("{}: {error}", lock.display())))
}

/// Compares the public API with that of the last tag.
fn semver(watchdog: &Watchdog) -> Result<(), Failure> {
    let tags = Step::of_line("git tag --list v* --sort=-version:refname").capture(watchdog)?;
    let Some(last) = tags.stdout.lines().next() else {
        println!("there is no tag yet, so there is no release to compare with");
        return Ok(());
    };
    // Building this tool takes minutes, for which there has to be a release.
    tool::prepare(&[&CARGO_SEMVER_CHECKS], true);
    tool::check(&[CARGO_SEMVER_CHECKS])?;
    Step::of_line("cargo semver-checks --baseline-rev")
        .arg(last)
        .args(CRATES.into_iter().flat_map(|name| ["-p", name]))
        .run(watchdog)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    /// The packages that can be published.
    fn published() -> Vec<Value> {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(workspace::root())
            .output()
            .expect("cargo runs");
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let packages = metadata["packages"].as_array().expect("a list").iter();
        let published = packages.filter(|package| package["publish"].is_null());
        published.cloned().collect()
    }

    #[test]
    fn every_crate_that_can_be_published_is_in_the_list() {
        let published = published();
        let mut names: Vec<_> = published
            .iter()
            .filter_map(|package| package["name"].as_str())
            .collect();
        names.sort_unstable();
        let mut listed = [&CRATES[..], &INTEGRATIONS].concat();
        listed.sort_unstable();
        assert_eq!(names, listed);
    }

    /// Each has the licences' text, names the targets for docs.rs, which builds for others too
    /// otherwise, and says which version it needs of the crates beside it.
    #[test]
    fn every_crate_that_can_be_published_has_what_that_takes() {
        let is_linux = |target: &Value| target.as_str().is_some_and(|name| name.contains("linux"));
        for package in published() {
            let name = package["name"].as_str().expect("a name");
            let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
            let folder = manifest.parent().expect("a folder");
            for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
                let text = |folder: &Path| fs::read(folder.join(licence)).ok();
                assert!(
                    text(folder).is_some() && text(folder) == text(workspace::root()),
                    "{name}: {licence} is not the root's"
                );
            }
            let targets = package["metadata"]["docs"]["rs"]["targets"].as_array();
            assert!(
                targets.is_some_and(|targets| targets.iter().all(is_linux)),
                "{name}: docs.rs would build it for systems that ibex does not have"
            );
            for needed in package["dependencies"].as_array().expect("a list") {
                assert!(
                    needed["kind"] == "dev" || needed["req"] != "*",
                    "{name}: {} has no version",
                    needed["name"]
                );
            }
        }
    }

    #[test]
    fn every_folder_of_several_things_says_what_is_where() {
        for folder in [
            "apps/replication",
            "benches",
            "bootstrap",
            "cli",
            "codec",
            "examples",
            "fuzz",
            "integrations",
            "testing",
            "tests",
            "transport",
            "vm",
            "xtask",
        ] {
            let readme = workspace::root().join(folder).join("README.md");
            assert!(readme.is_file(), "{} is missing", readme.display());
        }
    }
}
