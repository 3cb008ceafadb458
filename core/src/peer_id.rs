//! The names of peers, and of the fabrics that carry their sessions.

use std::fmt;

use ibex_base::Address;
use ibex_transport::session::PeerDescription;

use crate::Fabric;

/// A peer's identity and incarnation. The incarnation changes when the peer restarts.
///
/// Both are what the peer says of itself: a peer may claim those of another node. To decide what a
/// peer may do or have, use [`Peer::authenticated_as`](crate::Peer::authenticated_as), and to tell
/// sessions apart [`Peer::is_same_session`](crate::Peer::is_same_session).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    identity: [u8; 16],
    incarnation: u64,
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity[..6]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{:08x}", self.incarnation as u32)
    }
}

/// Serializes the text of `Display`.
#[cfg(feature = "serde")]
impl serde::Serialize for PeerId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PeerId {
    pub(crate) fn new(identity: [u8; 16], incarnation: u64) -> Self {
        Self {
            identity,
            incarnation,
        }
    }

    /// Returns the identity of the node alone, without its incarnation: the program's
    /// [`NodeBuilder::identity`](crate::NodeBuilder::identity), or one drawn for this run. All
    /// sessions of a node have the same, and so have all of its runs if the program sets it. A
    /// whole `PeerId` changes with each restart.
    #[must_use]
    pub fn node_id(&self) -> [u8; 16] {
        self.identity
    }

    pub(crate) fn of(peer: &PeerDescription) -> Self {
        Self::new(peer.identity, peer.incarnation)
    }
}

/// A peer as a [`FanIn`](crate::FanIn) and a [`Group`](crate::group::Group) name it: its identity, and its
/// address when the session began.
///
/// Sessions that a peer dialed have different addresses, so each has a `PeerAt` of its own. Sessions
/// that this node dialed to one address of a peer have equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct PeerAt {
    /// The peer's identity.
    pub id: PeerId,
    /// The peer's address as this node sees it: [`Peer::address`](crate::Peer::address).
    pub address: Address,
}

impl PeerAt {
    pub(crate) fn of(peer: &PeerDescription) -> Self {
        Self {
            id: PeerId::of(peer),
            address: peer.address,
        }
    }
}

impl fmt::Display for PeerAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.id, self.address)
    }
}

/// Returns the name of what carries a session's data, for people: the fabric, or vsock.
pub(crate) fn carrier(fabric: Fabric, address: Address) -> &'static str {
    match (fabric, address) {
        (Fabric::Tcp, Address::Vsock { .. }) => "vsock",
        _ => fabric.name(),
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({self})")
    }
}
