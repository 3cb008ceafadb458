//! The kernel's files below a folder: `/` on a machine, another one in a test.

use std::fs;
use std::path::{Path, PathBuf};

use ibex_verbs::discovery::Sysfs;

/// The folder below which `/sys`, `/proc`, `/dev`, `/etc` and the libraries are read.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Returns whether this is the machine itself, so that calls of the kernel may be tried too.
    pub(crate) fn is_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Returns the place of an absolute path.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Returns a file's text without the white space around it; `None` if it is missing, unreadable
    /// or empty.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns the names in a folder, in order; none if it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns the text of a symbolic link, which need not lead anywhere.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.to_string_lossy().into_owned())
    }

    /// Returns the last name in the text of a symbolic link, such as a driver's.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path)?;
        target.rsplit('/').next().map(str::to_owned)
    }

    pub(crate) fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.path("/sys"), self.path("/dev"))
    }

    /// Returns a field of `/proc/self/status`.
    pub(crate) fn status(&self, field: &str) -> Option<String> {
        let status = self.read("/proc/self/status")?;
        status.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == field).then(|| value.trim().to_owned())
        })
    }

    /// Returns the soft limit of this name in `/proc/self/limits`; `None` if there is none, or if
    /// the file cannot be read.
    pub(crate) fn soft_limit(&self, name: &str) -> Option<u64> {
        let limits = self.read("/proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    }
}
