//! The description of a peer, from its handshake.
#![forbid(unsafe_code)]

use std::{fmt, net::SocketAddr, sync::Arc, time::Instant};

use ibex_tls::AuthenticatedAs;

use crate::session::Fabric;

/// A peer's identity, and the way it is reached.
#[derive(Clone, Debug)]
pub struct PeerDescription {
    /// The peer's address as this end sees it.
    pub address: SocketAddr,
    /// The peer's identity.
    pub identity: [u8; 16],
    /// The peer's incarnation: another value means that it restarted.
    pub incarnation: u64,
    /// When its connection was there, on this end's clock: of two runs of one peer the
    /// earlier is the older.
    pub began: Instant,
    /// The peer's process, where it runs on this host.
    pub pid: Option<u32>,
    /// The fabric of the session's data.
    pub fabric: Fabric,
    /// Why this fabric.
    pub reason: String,
    /// Whom it has proven to be, where nodes are authenticated.
    pub authenticated_as: Option<AuthenticatedAs>,
    /// The name of the node here whose peer it is, for the log, if the program gave it one.
    pub known_to: Option<Arc<str>>,
}

/// Prints identity and incarnation, as far as people tell them apart, and the address.
impl fmt::Display for PeerDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.identity[..6].iter();
        shown.try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{:08x} at {}", self.incarnation as u32, self.address)
    }
}
