//! What a build needs: the oldest Rust that builds everything which the README names, and no C
//! compiler.
//!
//! cargo refuses a package whose `rust-version` is newer than the compiler. A compiler that reports
//! the minimum therefore shows whether a dependency needs more, and cargo decides it before it
//! compiles anything. For the code of this repository, clippy's `incompatible_msrv` does the same.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// Resolves all programs, tests and examples, with all features, for a compiler
/// of the minimum version, and looks for C tools among the dependencies of the verbs crate.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    let compiler = older_compiler()
        .map_err(|error| Failure::new(format!("the compiler that reports its age: {error}")))?;
    let resolve = Step::of_line("cargo build --locked --workspace --all-targets --all-features")
        // This stops before the first compilation; it is unstable.
        .args(["-Z", "unstable-options", "--unit-graph"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", &compiler)
        // cargo remembers the compiler's answers in its target folder.
        .env("CARGO_TARGET_DIR", folder());
    let resolved = resolve.capture(watchdog)?;
    if !resolved.status.success() {
        return Err(Failure::new(format!("`{resolve}`: {}", resolved.status)));
    }
    no_c_compiler(watchdog)
}

/// Checks that nothing which compiles C or generates bindings is among the crates that the verbs
/// crate builds with. A warm target folder would hide it: its build scripts have run.
fn no_c_compiler(watchdog: &Watchdog) -> Result<(), Failure> {
    let line = "cargo tree -p ibex-verbs --features fake,libibverbs -e normal,build \
                --prefix none --format {p}";
    let tree = Step::of_line(line).capture(watchdog)?;
    if !tree.status.success() {
        return Err(Failure::new(format!("`{line}` failed: {}", tree.status)));
    }
    let names = tree.stdout.lines().filter_map(|one| one.split(' ').next());
    let found: Vec<_> = names.filter(|name| C_BUILDERS.contains(name)).collect();
    match found.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "ibex-verbs needs C tools to build, by {}; they belong behind its feature `rdma-sys`",
            found.join(", ")
        ))),
    }
}

/// The crates by which build scripts call C tools.
const C_BUILDERS: &[&str] = &["bindgen", "cc", "clang-sys", "cmake", "pkg-config"];

/// Writes a compiler that reports the minimum as its version, and returns its path.
fn older_compiler() -> io::Result<String> {
    let manifest = fs::read_to_string(workspace::root().join("Cargo.toml"))?;
    let version =
        minimum(&manifest).ok_or_else(|| io::Error::other("Cargo.toml has no rust-version"))?;
    let path = format!("{}/rustc", folder());
    fs::create_dir_all(folder())?;
    let script = format!(
        "#!/bin/sh\n\
         case \" $* \" in\n\
         *' -vV '*) rustc -vV | sed 's/^release: .*/release: {version}.0/' ;;\n\
         *) exec rustc \"$@\" ;;\n\
         esac\n"
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn folder() -> String {
    let folder = workspace::target().join("minimum");
    folder.to_string_lossy().into_owned()
}

/// Returns the `rust-version` that a manifest states.
fn minimum(manifest: &str) -> Option<&str> {
    let (_, rest) = manifest.split_once("\nrust-version = \"")?;
    Some(rest.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> String {
        fs::read_to_string(workspace::root().join(path)).expect("the file is there")
    }

    #[test]
    fn all_pages_and_manifests_name_one_rust() {
        let root = read("Cargo.toml");
        let version = minimum(&root).expect("a rust-version");
        let pages = [
            "README.md",
            "CONTRIBUTING.md",
            "integrations/hyper/README.md",
            "integrations/iceoryx2/README.md",
            "integrations/metrics/README.md",
            "integrations/openraft/README.md",
            "integrations/tonic/README.md",
            "integrations/tracing/README.md",
        ];
        for page in pages {
            let text = read(page);
            let named: Vec<_> = text
                .split("Rust 1.")
                .skip(1)
                .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next())
                .collect();
            assert!(!named.is_empty(), "{page} names no version of Rust");
            for minor in named {
                assert_eq!(
                    minor.map(|minor| format!("1.{minor}")).as_deref(),
                    Some(version),
                    "{page}"
                );
            }
        }
    }
}
