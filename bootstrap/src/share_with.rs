//! The users with whose processes a node shares memory.
#![forbid(unsafe_code)]

/// The users with whose processes a node shares memory, beside its own.
///
/// The kernel says as which user, and in which groups, the process at the other end runs
/// (`SO_PEERCRED` and `SO_PEERGROUPS` of [unix(7)]). Both ends ask it, and each has to allow the
/// other.
///
/// A process whose user this node's user namespace does not map is none of `Users` and in no
/// `Group`: the kernel shows all such users by one number ([user_namespaces(7)]).
///
/// [unix(7)]: https://man7.org/linux/man-pages/man7/unix.7.html
/// [user_namespaces(7)]: https://man7.org/linux/man-pages/man7/user_namespaces.7.html
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareWith {
    /// No other user.
    #[default]
    Nobody,
    /// The users with these numbers, as this process sees them.
    Users(Vec<u32>),
    /// Processes in the group with this number, as this process sees it: their effective group, or
    /// one of their supplementary groups.
    Group(u32),
    /// Every user of this host.
    Anyone,
}
