//! Tickets, by which a dialer resumes a session.
#![forbid(unsafe_code)]

use ibex_base::tls::AuthenticatedAs;

use crate::fabric::Fabric;
use crate::identity::{Incarnation, NodeIdentity, Secret};

/// The knowledge that a dialer needs to resume a session.
#[derive(Clone, Debug)]
pub struct ResumeTicket {
    // The session.
    /// [`Agreement::session_id`](crate::handshake::Agreement::session_id).
    pub session_id: [u8; 16],
    /// [`Agreement::resume_secret`](crate::handshake::Agreement::resume_secret).
    pub secret: Secret,

    // The peer.
    /// The node that has the session.
    pub peer: NodeIdentity,
    /// The run of that node.
    pub incarnation: Incarnation,
    /// The identity that the node proved when the session began; it must prove the same again.
    pub authenticated_as: Option<AuthenticatedAs>,

    // The request.
    /// The epoch to begin: 1 or more, and one more at each attempt, as the acceptor may have begun
    /// an epoch whose answer the dialer never received.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: Fabric,
}
