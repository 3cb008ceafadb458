//! What a fork means for memory that is registered, as the kernel, libibverbs and the
//! environment have it. It is read and told, never changed: `ibv_fork_init` is the program's
//! to call, or another library's.
#![forbid(unsafe_code)]

use std::{env, fmt, sync::Arc};

use super::provider::Provider;

/// What `ibv_is_fork_initialized` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkStatus {
    /// A page that is registered may be the child's after a fork, and the parent have a copy
    /// that the device does not know. So it is also with a libibverbs that cannot be asked.
    Disabled,
    /// libibverbs keeps registered memory, its own included, from children.
    Enabled,
    /// The kernel gives the child the copy (5.12 and later).
    Unneeded,
    /// A number that this version does not know.
    Unknown(u32),
}

impl ForkStatus {
    /// From the C enumeration.
    #[must_use]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Disabled,
            1 => Self::Enabled,
            2 => Self::Unneeded,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for ForkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str(
                "not safe for the queues of libibverbs (IBV_FORK_DISABLED): set RDMAV_FORK_SAFE=1 \
                 if the program forks without exec",
            ),
            Self::Enabled => f.write_str("safe, by libibverbs (IBV_FORK_ENABLED)"),
            Self::Unneeded => f.write_str("safe, by the kernel (IBV_FORK_UNNEEDED)"),
            Self::Unknown(raw) => write!(f, "not known ({raw})"),
        }
    }
}

/// What there is to know before a program forks. Its `Display` is one line.
///
/// ibex keeps the memory that it registers from children itself; the status is about what
/// libibverbs registers, the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkReport {
    /// `ibv_is_fork_initialized`.
    pub status: ForkStatus,
    /// `RDMAV_FORK_SAFE` or `IBV_FORK_SAFE` is set: libibverbs calls `ibv_fork_init` itself.
    pub fork_safe: bool,
    /// `RDMAV_HUGEPAGES_SAFE` is set: libibverbs asks for the size of pages then. ibex needs
    /// it for nothing, having no memory of hugetlbfs.
    pub huge_pages_safe: bool,
}

impl ForkReport {
    /// As it is now.
    #[must_use]
    pub fn now(provider: &Arc<dyn Provider>) -> Self {
        Self::of(provider, |name| env::var_os(name).is_some())
    }

    pub(super) fn of(provider: &Arc<dyn Provider>, is_set: impl Fn(&str) -> bool) -> Self {
        Self {
            status: provider.fork_status(),
            fork_safe: is_set("RDMAV_FORK_SAFE") || is_set("IBV_FORK_SAFE"),
            huge_pages_safe: is_set("RDMAV_HUGEPAGES_SAFE"),
        }
    }
}

impl fmt::Display for ForkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |is_set| if is_set { "is set" } else { "is not set" };
        write!(
            f,
            "{}; RDMAV_FORK_SAFE {}, RDMAV_HUGEPAGES_SAFE {}",
            self.status,
            said(self.fork_safe),
            said(self.huge_pages_safe)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::provider::fake::{FakeDevice, FakeProvider};
    use super::*;

    #[test]
    fn the_variables_and_the_status_are_one_line() {
        let provider = FakeProvider::new(Vec::<FakeDevice>::new()).provider();
        let report = ForkReport::of(&provider, |name| name == "IBV_FORK_SAFE");
        assert_eq!(
            report.to_string(),
            "safe, by the kernel (IBV_FORK_UNNEEDED); RDMAV_FORK_SAFE is set, \
             RDMAV_HUGEPAGES_SAFE is not set"
        );
        let report = ForkReport {
            status: ForkStatus::from_raw(0),
            ..ForkReport::of(&provider, |name| name == "RDMAV_HUGEPAGES_SAFE")
        };
        assert_eq!(
            report.to_string(),
            "not safe for the queues of libibverbs (IBV_FORK_DISABLED): set RDMAV_FORK_SAFE=1 if \
             the program forks without exec; RDMAV_FORK_SAFE is not set, RDMAV_HUGEPAGES_SAFE is \
             set"
        );
        assert_eq!(ForkStatus::from_raw(9), ForkStatus::Unknown(9));
    }
}
