//! The memory that this process may lock, and has locked: a refused registration or queue is told
//! by it.
#![forbid(unsafe_code)]

use std::fs;

use rustix::process::{Resource, getrlimit};

/// The memory that the kernel counts against the limit on locked memory
/// ([`RLIMIT_MEMLOCK`](https://man7.org/linux/man-pages/man2/getrlimit.2.html)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedMemory {
    /// Bytes that devices have pinned for this process, for any of its code.
    pub pinned: u64,
    /// The soft limit; `None` where there is none, or where it does not bind.
    pub limit: Option<u64>,
}

/// `CAP_IPC_LOCK` (linux/capability.h): a process that has this capability is not limited.
const IPC_LOCK: u64 = 1 << 14;

impl LockedMemory {
    /// Reads the present state.
    #[must_use]
    pub fn now() -> Self {
        // Capabilities belong to a thread. Without /proc, only the limit is known.
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Self::from_status(&status, getrlimit(Resource::Memlock).current)
    }

    fn from_status(status: &str, limit: Option<u64>) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("", |value| value.trim())
        };
        let pinned = field("VmPin:").trim_end_matches(" kB").parse().unwrap_or(0);
        let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
        Self {
            pinned: 1024 * pinned,
            limit: limit.filter(|_| capabilities & IPC_LOCK == 0),
        }
    }

    /// Returns the limit, if this many bytes more are beyond it.
    pub(crate) fn limit_passed_by(&self, bytes: u64) -> Option<u64> {
        self.limit
            .filter(|limit| self.pinned.saturating_add(bytes) > *limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "Name:\tibex\nVmLck:\t       0 kB\nVmPin:\t      60 kB\n\
                        CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n";
    const ROOT: &str = "VmPin:\t      60 kB\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn the_limit_binds_users_without_the_capability() {
        let user = LockedMemory::from_status(USER, Some(65_536));
        assert_eq!(user.pinned, 61_440);
        assert_eq!(user.limit_passed_by(4096), None);
        assert_eq!(user.limit_passed_by(4097), Some(65_536));
        assert_eq!(user.limit_passed_by(u64::MAX), Some(65_536));
        let root = LockedMemory::from_status(ROOT, Some(65_536));
        assert_eq!(root.limit_passed_by(u64::MAX), None);
        assert_eq!(LockedMemory::from_status(USER, None).limit, None);
    }

    #[test]
    fn without_the_file_the_limit_is_all_that_is_known() {
        let blind = LockedMemory::from_status("", Some(10));
        assert_eq!(blind.limit_passed_by(11), Some(10));
        assert_eq!(blind.limit_passed_by(10), None);
    }
}
