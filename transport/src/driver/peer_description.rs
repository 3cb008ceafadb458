//! What a handshake told of a peer.
#![forbid(unsafe_code)]

use std::{fmt, net::SocketAddr, time::Instant};

use crate::{engine::control::CloseReason, fabric::Fabric};

/// Who the peer is and how it is reached.
#[derive(Clone, Debug)]
pub struct PeerDescription {
    /// Its address as this end sees it.
    pub address: SocketAddr,
    /// Its identity.
    pub identity: [u8; 16],
    /// Its incarnation: another value means that it restarted.
    pub incarnation: u64,
    /// When its connection was there, on this end's clock: of two runs of one peer the
    /// earlier is the older.
    pub began: Instant,
    /// Its process, where it runs on this host.
    pub pid: Option<u32>,
    /// Whether it reads an open with several versions of a message type.
    pub knows_versions: bool,
    /// Whether it knows of rings in shared memory that rest.
    pub rests: bool,
    /// Whether it knows of memory that is granted to be written to (verbs).
    pub knows_writes: bool,
    /// Whether it knows that a sender may give up.
    pub knows_aborts: bool,
    /// What carries the data.
    pub fabric: Fabric,
    /// Why this fabric.
    pub reason: String,
}

impl PeerDescription {
    /// The reason that the peer is told: that one, or the nearest that it knows.
    pub(crate) fn hears_as(&self, reason: CloseReason) -> CloseReason {
        match reason {
            CloseReason::Aborted if !self.knows_aborts => CloseReason::SlotLeaked,
            reason => reason,
        }
    }
}

/// Its identity and incarnation, as far as people tell them apart, and its address.
impl fmt::Display for PeerDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.identity[..6].iter();
        shown.try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{:08x} at {}", self.incarnation as u32, self.address)
    }
}
