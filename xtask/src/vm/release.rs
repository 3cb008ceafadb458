//! The releases from which a guest may be made, as `vm/releases` lists them.

use std::fmt;
use std::fs;

use crate::failure::Failure;
use crate::workspace;

/// The source of a guest's packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// A release of Debian, by its name.
    Debian(String),
    /// The root of this machine, and a kernel from its package sources.
    Host,
}

impl Release {
    /// Returns all releases, in the order in which they are tried.
    pub(crate) fn all() -> Result<Vec<Self>, Failure> {
        let path = workspace::root().join("vm/releases");
        let text = fs::read_to_string(&path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Ok(entries(&text).map(Self::named).collect())
    }

    /// Returns the name that the list uses.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Debian(name) => name,
            Self::Host => HOST,
        }
    }

    fn named(name: &str) -> Self {
        if name == HOST {
            Self::Host
        } else {
            Self::Debian(name.to_string())
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(name) => write!(f, "Debian {name}"),
            Self::Host => f.write_str("this machine's own root"),
        }
    }
}

/// Returns the entries of a list: one per line, and `#` begins a comment.
pub(crate) fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|entry| !entry.is_empty())
}

const HOST: &str = "host";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_are_no_entries() {
        let text = "# all\n\nforky  # 7.2\n   trixie\nhost";
        let releases: Vec<_> = entries(text).map(Release::named).collect();
        let debian = |name: &str| Release::Debian(name.to_string());
        assert_eq!(releases, [debian("forky"), debian("trixie"), Release::Host]);
    }

    #[test]
    fn the_committed_list_ends_with_the_last_resort() {
        let releases = Release::all().unwrap();
        assert!(releases.len() > 1);
        assert_eq!(releases.last(), Some(&Release::Host));
        assert!(!releases[..releases.len() - 1].contains(&Release::Host));
    }
}
