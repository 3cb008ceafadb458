//! What a fork means for the memory that libibverbs registers.
#![forbid(unsafe_code)]

use std::fmt;

/// The answer of `ibv_is_fork_initialized` about this process.
///
/// See [`ibv_is_fork_initialized(3)`](https://man7.org/linux/man-pages/man3/ibv_is_fork_initialized.3.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkStatus {
    /// A fork may leave a registered page to the child and give the parent a copy that the
    /// device does not know. A libibverbs that cannot be asked counts as this too.
    Disabled,
    /// libibverbs keeps registered memory from children, its own memory included.
    Enabled,
    /// The kernel gives the child the copy (5.12 and later).
    Unneeded,
    /// A number that this version does not know.
    Unknown(u32),
}

impl ForkStatus {
    /// Returns whether a process may fork while a device works for it, independent of what its
    /// child does.
    #[must_use]
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Enabled | Self::Unneeded)
    }

    /// Translates the C enumeration `ibv_fork_status`.
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
                 if the program forks, also where the child calls exec at once; posix_spawn and \
                 vfork are safe",
            ),
            Self::Enabled => f.write_str("safe, by libibverbs (IBV_FORK_ENABLED)"),
            Self::Unneeded => f.write_str("safe, by the kernel (IBV_FORK_UNNEEDED)"),
            Self::Unknown(raw) => write!(f, "not known ({raw})"),
        }
    }
}
