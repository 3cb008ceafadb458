//! The description of a peer, from its handshake.
#![forbid(unsafe_code)]

use std::{fmt, net::SocketAddr, sync::Arc, time::Instant};

use ibex_tls::AuthenticatedAs;

use crate::session::Fabric;

/// A peer's identity, and the way in which it is reached.
#[derive(Clone, Debug)]
pub struct PeerDescription {
    /// The peer's address as this end sees it.
    pub address: SocketAddr,
    /// The peer's identity.
    pub identity: [u8; 16],
    /// The peer's incarnation: another value means that it restarted.
    pub incarnation: u64,
    /// Time at which its connection was established, on this end's clock. It shows which of two
    /// runs of a peer is the older.
    pub began: Instant,
    /// The peer's process, if it runs on this host.
    pub pid: Option<u32>,
    /// The fabric of the session's data.
    pub fabric: Fabric,
    /// The reason for the choice of this fabric.
    pub reason: String,
    /// The identity that the peer has proven, if nodes are authenticated.
    pub authenticated_as: Option<AuthenticatedAs>,
    /// The name of the local node whose peer this is, for the log, if the program gave it one.
    pub known_to: Option<Arc<str>>,
}

/// Prints the parts of identity and incarnation that suffice to tell peers apart, and the address.
impl fmt::Display for PeerDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.identity[..6].iter();
        shown.try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{:08x} at {}", self.incarnation as u32, self.address)
    }
}
