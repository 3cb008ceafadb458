//! *Resume* and *Resumed*: the wires of a session broke, and this connection is its next.

use crate::fabric::Fabric;

/// A dialer's message in place of its *Offer*, to resume a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The session's name.
    pub session_id: [u8; 16],
    /// The epoch that begins; higher than any before it.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: Fabric,
    /// The proof that the dialer has the session's secret.
    pub proof: [u8; 32],
}

/// The acceptor's answer: the epoch has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The proof that the acceptor has the session's secret.
    pub proof: [u8; 32],
}
