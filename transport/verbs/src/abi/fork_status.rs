//! What a fork means for the memory that libibverbs registers.
#![forbid(unsafe_code)]

use super::enumeration::enumeration;

enumeration! {
    /// The answer of `ibv_is_fork_initialized` about this process.
    ///
    /// See [`ibv_is_fork_initialized(3)`](https://man7.org/linux/man-pages/man3/ibv_is_fork_initialized.3.html).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ForkStatus(u32), "not known ({})", {
        /// A fork may leave a registered page to the child and give the parent a copy that the
        /// device does not know. A libibverbs that cannot be asked counts as this too.
        Disabled = 0, "not safe for the queues of libibverbs (IBV_FORK_DISABLED): set RDMAV_FORK_SAFE=1 if the \
         program forks, also where the child calls exec at once; posix_spawn and vfork are safe";
        /// libibverbs keeps registered memory from children, its own memory included.
        Enabled = 1, "safe, by libibverbs (IBV_FORK_ENABLED)";
        /// The kernel gives the child the copy (5.12 and later).
        Unneeded = 2, "safe, by the kernel (IBV_FORK_UNNEEDED)";
    }
}

impl ForkStatus {
    /// Returns whether a process may fork while a device works for it, independent of what its
    /// child does.
    #[must_use]
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Enabled | Self::Unneeded)
    }
}
