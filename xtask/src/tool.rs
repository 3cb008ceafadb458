//! Tools that stages need beside cargo, and their installation.
//!
//! A tool is named before it is installed. Nothing is installed that no chosen stage needs, and
//! nothing at all with `--no-install`.

use std::fmt;

use rustix::process::geteuid;

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;

/// A tool that a stage runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// A command that succeeds if the tool is installed.
    probe: &'static str,
    source: Source,
}

/// The source of a tool.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// A package of Debian and Ubuntu.
    Package(&'static str),
    /// A component of the Rust toolchain.
    Component(&'static str),
    /// A crate with a program in it.
    Crate {
        name: &'static str,
        version: &'static str,
    },
}

pub(crate) const RUSTFMT: Tool = Tool {
    probe: "cargo fmt --version",
    source: Source::Component("rustfmt"),
};

pub(crate) const CLIPPY: Tool = Tool {
    probe: "cargo clippy --version",
    source: Source::Component("clippy"),
};

/// A C++ compiler.
pub(crate) const CXX: Tool = Tool {
    probe: "g++ --version",
    source: Source::Package("g++"),
};

// The build of the bindings to libibverbs needs this.
pub(crate) const CMAKE: Tool = Tool::package("cmake", "cmake --version");
pub(crate) const LIBCLANG: Tool = Tool::package("libclang-dev", "dpkg-query -W libclang-dev");

/// The emulator that `cargo xtask vm` runs.
pub(crate) const QEMU: Tool = Tool::package("qemu-system-x86", "qemu-system-x86_64 --version");
/// depmod(8).
pub(crate) const KMOD: Tool = Tool::package("kmod", "depmod --version");
pub(crate) const XZ: Tool = Tool::package("xz-utils", "xz --version");
/// Unpacks the modules of Ubuntu's kernels.
pub(crate) const ZSTD: Tool = Tool::package("zstd", "zstd --version");
/// The keys that sign Debian's releases.
pub(crate) const DEBIAN_KEYRING: Tool = Tool::package(
    "debian-archive-keyring",
    "test -e /usr/share/keyrings/debian-archive-keyring.gpg",
);

/// Scrapes the page of the metrics, and reads its text (promtool).
pub(crate) const PROMETHEUS: Tool = Tool::package("prometheus", "promtool --version");

/// Counts instructions.
pub(crate) const VALGRIND: Tool = Tool::package("valgrind", "valgrind --version");

// Packages that a guest needs in this machine's own root.
pub(crate) const IPROUTE: Tool = Tool::package("iproute2", "rdma -V");
pub(crate) const RDMA_CORE: Tool = Tool::package("rdma-core", "dpkg-query -W rdma-core");
pub(crate) const IBVERBS_PROVIDERS: Tool =
    Tool::package("ibverbs-providers", "dpkg-query -W ibverbs-providers");
pub(crate) const IBVERBS_UTILS: Tool =
    Tool::package("ibverbs-utils", "dpkg-query -W ibverbs-utils");
pub(crate) const PERFTEST: Tool = Tool::package("perftest", "dpkg-query -W perftest");

pub(crate) const CARGO_FUZZ: Tool = Tool::program("cargo-fuzz", "0.13.2", "cargo fuzz --version");

pub(crate) const CARGO_DENY: Tool = Tool::program("cargo-deny", "0.20.2", "cargo deny --version");
pub(crate) const CARGO_HACK: Tool = Tool::program("cargo-hack", "0.6.46", "cargo hack --version");
pub(crate) const CARGO_SEMVER_CHECKS: Tool = Tool::program(
    "cargo-semver-checks",
    "0.45.0",
    "cargo semver-checks --version",
);

impl Tool {
    const fn package(name: &'static str, probe: &'static str) -> Self {
        Self {
            probe,
            source: Source::Package(name),
        }
    }

    /// A program that cargo builds from a crate.
    const fn program(name: &'static str, version: &'static str, probe: &'static str) -> Self {
        Self {
            probe,
            source: Source::Crate { name, version },
        }
    }

    fn is_there(&self) -> bool {
        Step::of_line(self.probe).succeeds()
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Package(name) => write!(f, "{name} (package of Debian and Ubuntu)"),
            Source::Component(name) => write!(f, "{name} (rustup component)"),
            Source::Crate { name, .. } => write!(f, "{name} (cargo install)"),
        }
    }
}

/// Names the missing tools of `wanted` and installs them, if that is allowed.
///
/// The function never fails; a stage whose tool is still missing fails by [`check`].
pub(crate) fn prepare(wanted: &[&Tool], may_install: bool) {
    let missing: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|tool| !tool.is_there())
        .collect();
    if missing.is_empty() {
        return;
    }
    eprintln!("wanted and not on this machine:");
    for tool in &missing {
        eprintln!("  {tool}");
    }
    if !may_install {
        eprintln!("installing nothing (--no-install); the stages that need them will fail");
        return;
    }
    for step in installation(&missing, geteuid().is_root()) {
        if let Err(failure) = step.aside().run(&Watchdog::patient()) {
            eprintln!("{failure}");
        }
    }
}

/// Fails if tools of `wanted` are missing, and names them.
pub(crate) fn check(wanted: &[Tool]) -> Result<(), Failure> {
    let missing: Vec<_> = wanted
        .iter()
        .filter(|tool| !tool.is_there())
        .map(Tool::to_string)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        let missing = missing.join(", ");
        Err(Failure::new(format!(
            "needs {missing}; install it, or run without --no-install (as root or with sudo)"
        )))
    }
}

/// Returns the commands that install `missing`.
fn installation(missing: &[&Tool], is_root: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let packages: Vec<_> = missing
        .iter()
        .filter_map(|tool| match tool.source {
            Source::Package(name) => Some(name),
            _ => None,
        })
        .collect();
    if !packages.is_empty() {
        // `env`, since sudo drops variables.
        let apt_get = if is_root { "env" } else { "sudo env" };
        let apt_get = format!("{apt_get} DEBIAN_FRONTEND=noninteractive apt-get");
        steps.push(Step::of_line(&format!("{apt_get} update")));
        let install = Step::of_line(&format!("{apt_get} install -y --no-install-recommends"));
        steps.push(install.args(packages));
    }
    for tool in missing {
        match tool.source {
            Source::Package(_) => {}
            Source::Component(name) => {
                steps.push(Step::of_line("rustup component add").arg(name));
            }
            Source::Crate { name, version } => {
                let install = format!("cargo install {name} --version {version} --locked");
                steps.push(Step::of_line(&install));
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(missing: &[&Tool], is_root: bool) -> Vec<String> {
        installation(missing, is_root)
            .iter()
            .map(Step::to_string)
            .collect()
    }

    #[test]
    fn sudo_is_used_only_without_root() {
        assert_eq!(
            lines(&[&CXX], true),
            [
                "env DEBIAN_FRONTEND=noninteractive apt-get update",
                "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++",
            ]
        );
        assert!(
            lines(&[&CXX], false)
                .iter()
                .all(|line| line.starts_with("sudo env DEBIAN"))
        );
    }

    #[test]
    fn tools_that_are_no_packages_are_installed_without_apt() {
        assert_eq!(
            lines(&[&CARGO_FUZZ, &CLIPPY], false),
            [
                "cargo install cargo-fuzz --version 0.13.2 --locked",
                "rustup component add clippy"
            ]
        );
    }

    #[test]
    fn a_missing_tool_is_named_with_its_source() {
        let missing = Tool {
            probe: "no-such-program",
            source: Source::Package("no-such"),
        };
        let failure = check(&[missing]).unwrap_err().to_string();
        assert!(
            failure.starts_with("needs no-such (package of Debian and Ubuntu); "),
            "{failure}"
        );
        assert_eq!(check(&[]), Ok(()));
    }
}
