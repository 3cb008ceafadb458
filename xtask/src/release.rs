//! The stages of `cargo xtask release-check`: whether the crates can be published, and what a
//! change of them means for those who depend on them.

use std::fs;
use std::time::Duration;

use crate::failure::Failure;
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
        ]),
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
const CRATES: [&str; 10] = [
    "ibex",
    "ibex-base",
    "ibex-bootstrap",
    "ibex-codec",
    "ibex-derive",
    "ibex-protocol",
    "ibex-ring",
    "ibex-tls",
    "ibex-transport",
    "ibex-verbs",
];

fn package(watchdog: &Watchdog) -> Result<(), Failure> {
    let crates = CRATES.map(|name| format!("-p {name}")).join(" ");
    // Warnings come on standard error.
    let line = format!("cargo package --no-verify --allow-dirty {crates} 2>&1");
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
    for name in CRATES {
        let list = Step::of_line("cargo package --list --allow-dirty -p").arg(name);
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
    use std::process::Command;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_crate_that_can_be_published_is_in_the_list() {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(workspace::root())
            .output()
            .expect("cargo runs");
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let packages = metadata["packages"].as_array().expect("a list");
        let mut published: Vec<_> = packages
            .iter()
            .filter(|package| package["publish"].is_null())
            .filter_map(|package| package["name"].as_str())
            .collect();
        published.sort_unstable();
        assert_eq!(published, CRATES);
    }
}
