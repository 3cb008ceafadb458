//! A copy of the sources that contains every bug of `testing/mutants`.
//!
//! The sources themselves have none. Each patch adds calls of `is_mutant("name")`, which are false
//! unless `IBEX_MUTANT=name` is in the environment, so one build serves all bugs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// Returns the paths of the patches.
pub(crate) fn patches() -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(workspace::root().join("testing/mutants"))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut patches = paths.collect::<io::Result<Vec<_>>>()?;
    patches.retain(|path| path.extension().is_some_and(|name| name == "patch"));
    patches.sort();
    Ok(patches)
}

/// Makes the copy and returns the path of its `Cargo.toml`. Fails if a patch does not apply
/// exactly.
///
/// All stages of a run share one copy: another would touch each patched file, and make cargo build
/// the crates once more.
pub(crate) fn make(watchdog: &Watchdog) -> Result<&'static str, Failure> {
    static MANIFEST: OnceLock<String> = OnceLock::new();
    if let Some(manifest) = MANIFEST.get() {
        return Ok(manifest);
    }
    let copy = workspace::target().join("mutated");
    let impossible = |error| Failure::new(format!("no copy in {}: {error}", copy.display()));
    copy_sources(workspace::root(), &copy).map_err(impossible)?;
    for patch in patches().map_err(impossible)? {
        Step::of_line("git apply --whitespace=nowarn")
            .arg(patch.to_string_lossy())
            .in_directory(&copy)
            // Makes git treat the copy as a directory of its own, and not as a part of the
            // repository.
            .env(
                "GIT_CEILING_DIRECTORIES",
                workspace::target().to_string_lossy(),
            )
            .run(watchdog)?;
    }
    set_apart(&copy.join("Cargo.toml")).map_err(impossible)?;
    let manifest = copy.join("Cargo.toml").to_string_lossy().into_owned();
    Ok(MANIFEST.get_or_init(|| manifest))
}

/// Gives the packages of a manifest another version. Both share a target folder, in which cargo tells
/// packages apart by name, version and path within their workspace: it would take a crate of the
/// copy for the real one.
fn set_apart(manifest: &Path) -> io::Result<()> {
    let text = fs::read_to_string(manifest)?;
    let line = text.lines().find(|line| line.starts_with("version = \""));
    let line = line.ok_or_else(|| io::Error::other("no version in its manifest"))?;
    let apart = format!("{}+mutated\"", line.trim_end_matches('"'));
    fs::write(manifest, text.replacen(line, &apart, 1))
}

/// Makes `to` equal to `from`, without build outputs and hidden files. An unchanged file keeps its
/// modification time, so that cargo builds only what differs.
pub(crate) fn copy_sources(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let there = entry?.path();
        let here = from.join(there.file_name().expect("an entry has a name"));
        match (here.exists(), there.is_dir()) {
            (true, _) => {}
            (false, true) => fs::remove_dir_all(&there)?,
            (false, false) => fs::remove_file(&there)?,
        }
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, here) = (entry.file_name(), entry.path());
        let is_left_out = name.to_string_lossy().starts_with('.') || name == "target";
        let there = to.join(&name);
        if is_left_out || here == workspace::target() {
            continue;
        } else if entry.file_type()?.is_dir() {
            copy_sources(&here, &there)?;
        } else if fs::read(&there).ok() != Some(fs::read(&here)?) {
            fs::copy(&here, &there)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Also a comment beside a hunk may keep it from applying, which the stage `mutants` would tell
    /// an hour later.
    #[test]
    fn every_patch_applies_to_the_sources() {
        let mut git = Command::new("git")
            .args(["apply", "--check", "--whitespace=nowarn", "-"])
            .current_dir(workspace::root())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("git runs");
        let mut input = git.stdin.take().expect("it is piped");
        for patch in patches().expect("the patches can be listed") {
            let patch = fs::read(patch).expect("a patch can be read");
            input.write_all(&patch).expect("git reads it");
        }
        drop(input);
        let output = git.wait_with_output().expect("git ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}
