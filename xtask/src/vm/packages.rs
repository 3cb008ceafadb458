//! A package manager that leaves this machine unchanged: apt with its lists, its archives and its
//! record of installed packages (none) in a folder of ours. It therefore needs no root rights, and
//! serves any release on any Debian or Ubuntu.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::vm::release::Release;

/// The packages of one release.
#[derive(Debug)]
pub(crate) struct Packages {
    folder: PathBuf,
    options: Vec<String>,
}

/// A downloaded package.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) version: String,
}

impl Packages {
    /// Fetches the release's index; `folder` receives all files.
    pub(crate) fn of(release: &Release, folder: &Path) -> Result<Self, Failure> {
        for part in ["lists/partial", "archives/partial", "sources"] {
            make_folder(&folder.join(part))?;
        }
        // The record of installed packages is empty.
        write(&folder.join("status"), "")?;
        let at = |part: &str| format!("{}/{part}", folder.display());
        let mut options = vec![
            format!("Dir::State={}", folder.display()),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", folder.display()),
            format!("Dir::Cache::archives={}", at("archives")),
            "APT::Architecture=amd64".into(),
            "APT::Architectures=amd64".into(),
            "APT::Install-Recommends=false".into(),
            // The folder belongs to us, and not to apt's own user.
            "APT::Sandbox::User=".into(),
            // A mirror may be a snapshot of an earlier day.
            "Acquire::Check-Valid-Until=false".into(),
            "Acquire::Languages=none".into(),
        ];
        if let Release::Debian(name) = release {
            write(
                &folder.join("sources/debian.sources"),
                &source(name, &mirror()),
            )?;
            options.extend([
                "Dir::Etc::SourceList=/dev/null".into(),
                format!("Dir::Etc::SourceParts={}", at("sources")),
                // This machine's preferences are about its own releases.
                "Dir::Etc::Preferences=/dev/null".into(),
                "Dir::Etc::PreferencesParts=/dev/null".into(),
            ]);
        }
        let packages = Self {
            folder: folder.to_path_buf(),
            options,
        };
        // Without `any`, apt would continue without the lists that it could not fetch.
        packages.ask("apt-get", ["update", "--error-on=any", "-qq"])?;
        Ok(packages)
    }

    /// Returns the version of a package that apt would install.
    pub(crate) fn version_of(&self, package: &str) -> Result<String, Failure> {
        let shown = self.ask("apt-cache", ["show", "--no-all-versions", package])?;
        let version = shown
            .lines()
            .find_map(|line| line.strip_prefix("Version: "));
        let version = version.ok_or_else(|| Failure::new(format!("there is no {package}")))?;
        Ok(version.to_string())
    }

    /// Downloads these packages and all their dependencies.
    pub(crate) fn download<'a>(
        &self,
        packages: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Archive>, Failure> {
        let words = ["install", "--download-only", "-y", "-qq"];
        self.ask("apt-get", words.into_iter().chain(packages))?;
        let mut archives = self.archives()?;
        // This package has the links that unite /bin and /usr/bin. They must exist before a file is
        // put into either.
        archives.sort_by_key(|archive| (archive.name != "base-files", archive.name.clone()));
        Ok(archives)
    }

    /// Downloads this package without its dependencies.
    pub(crate) fn download_alone(&self, package: &str) -> Result<Archive, Failure> {
        let mut command = self.command("apt-get");
        let folder = self.folder.join("archives");
        output(
            command
                .args(["download", "-qq", package])
                .current_dir(folder),
        )?;
        let mut archives = self.archives()?.into_iter();
        let archive = archives.find(|archive| archive.name == package);
        archive.ok_or_else(|| Failure::new(format!("{package} was not downloaded")))
    }

    /// Returns the downloaded archives.
    fn archives(&self) -> Result<Vec<Archive>, Failure> {
        let folder = self.folder.join("archives");
        let unreadable = |error| Failure::new(format!("{}: {error}", folder.display()));
        let mut archives = Vec::new();
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if let Some((name, version)) = path.file_name().and_then(described) {
                archives.push(Archive {
                    path,
                    name,
                    version,
                });
            }
        }
        Ok(archives)
    }

    fn ask<'a>(
        &self,
        program: &str,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<String, Failure> {
        output(self.command(program).args(words))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

impl Archive {
    /// Unpacks the files that it would install, without running its scripts.
    pub(crate) fn unpack(&self, root: &Path) -> Result<(), Failure> {
        let mut command = Command::new("dpkg-deb");
        output(command.arg("--extract").arg(&self.path).arg(root)).map(|_| ())
    }
}

/// Runs a command silently to its end. Returns its standard output, or an error with its messages.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::new(format!("`{program}`: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // The first error causes the others.
    let said: Vec<_> = said
        .lines()
        .filter(|line| !line.is_empty())
        .take(3)
        .collect();
    let (status, said) = (output.status, said.join("; "));
    Err(Failure::new(format!(
        "`{program}` failed, {status}: {said}"
    )))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

pub(crate) fn make_folder(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Returns the mirror of Debian: the user's choice, the one that this machine uses, or the public
/// one.
fn mirror() -> String {
    if let Ok(mirror) = env::var("IBEX_VM_MIRROR") {
        return mirror;
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)"]);
    command.args(["Created-By: Packages", "Origin: Debian", "Label: Debian"]);
    let known = output(&mut command).unwrap_or_default();
    known.lines().next().unwrap_or(DEFAULT_MIRROR).to_string()
}

/// Returns the entry for sources.list(5).
fn source(release: &str, mirror: &str) -> String {
    format!(
        "Types: deb\nURIs: {mirror}\nSuites: {release}\nComponents: main\nSigned-By: {KEYRING}\n"
    )
}

/// Returns name and version from the name of an archive, `NAME_VERSION_ARCHITECTURE.deb`.
fn described(file_name: &OsStr) -> Option<(String, String)> {
    let mut parts = file_name.to_str()?.strip_suffix(".deb")?.split('_');
    let (name, version) = (parts.next()?, parts.next()?);
    Some((name.to_string(), version.replace("%3a", ":")))
}

const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";

/// A file of the package debian-archive-keyring, which Ubuntu has as well.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_file_name_says_name_and_version() {
        let described = |name: &str| described(OsStr::new(name));
        assert_eq!(
            described("rdma-core_65.0-1.1_amd64.deb"),
            Some(("rdma-core".into(), "65.0-1.1".into()))
        );
        // File names contain no colons.
        assert_eq!(
            described("procps_2%3a4.0.7-1_amd64.deb").unwrap().1,
            "2:4.0.7-1"
        );
        for other in ["lock", "partial", "README.deb"] {
            assert_eq!(described(other), None, "{other}");
        }
    }

    #[test]
    fn a_source_is_trusted_by_debians_keys_only() {
        let source = source("forky", "http://mirror/debian");
        assert!(source.contains("URIs: http://mirror/debian\nSuites: forky\n"));
        assert!(source.contains(&format!("Signed-By: {KEYRING}\n")));
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        let failure = output(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"]));
        assert_eq!(
            failure.unwrap_err().to_string(),
            "`sh` failed, exit status: 3: no such thing"
        );
    }
}
