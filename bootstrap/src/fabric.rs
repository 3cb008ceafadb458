//! The fabrics that a session can run on, and a node's wishes for each.
#![forbid(unsafe_code)]

pub use ibex_base::Fabric;

/// A node's wish for one fabric. The wishes of both nodes of a session count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The fabric is used where it is the best that both nodes have.
    #[default]
    Auto,
    /// The session uses this fabric, or there is no session.
    Require,
    /// The fabric is used where it can be had, even if another would be chosen.
    Prefer,
    /// The fabric is never used.
    Forbid,
}

/// A fabric as a node offers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricOffer {
    /// The fabric.
    pub kind: Fabric,
    /// The node's wish for the fabric.
    pub policy: Policy,
    /// The device, for verbs; a verbs offer without one states the policy of a
    /// node that has no device. Always `None` for shm and tcp.
    pub device: Option<VerbsDevice>,
    /// The reason why there is no device. It is never sent, since it names interfaces and files
    /// that do not concern a peer.
    pub no_device: Option<String>,
    /// True, for shm, if the kernel or a sandbox denies the node what the fabric needs.
    pub is_denied: bool,
    /// True, for shm, if the node shares memory with some processes of other users.
    pub crosses_users: bool,
    /// True, for shm, if the node has a directory for sockets, in which it meets nodes of other
    /// network namespaces.
    pub has_directory: bool,
}

impl FabricOffer {
    /// Creates an offer of which only the wish is known.
    pub fn new(kind: Fabric, policy: Policy) -> FabricOffer {
        FabricOffer {
            kind,
            policy,
            device: None,
            no_device: None,
            is_denied: false,
            crosses_users: false,
            has_directory: false,
        }
    }
}

/// The RDMA device that a node would use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsDevice {
    /// False for a software device, which is slower than the kernel's TCP and
    /// so never chosen unless verbs is required or preferred.
    pub hardware: bool,
    /// The device's name, such as `mlx5_0`, for the reason given in words.
    pub name: String,
}
