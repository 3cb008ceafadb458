//! Tickets, by which a dialer goes on with a session.
#![forbid(unsafe_code)]

use ibex_tls::AuthenticatedAs;

use crate::fabric::FabricKind;
use crate::identity::{Incarnation, NodeIdentity, Secret};

/// The knowledge that a dialer needs to go on with a session.
#[derive(Clone, Debug)]
pub struct Ticket {
    // Which session.
    /// [`Established::session_id`](crate::Established::session_id).
    pub session_id: [u8; 16],
    /// [`Established::resume_secret`](crate::Established::resume_secret).
    pub secret: Secret,

    // With whom.
    /// The node that has the session.
    pub peer: NodeIdentity,
    /// The run of it.
    pub incarnation: Incarnation,
    /// Whom it proved to be when the session began; it has to prove the same again.
    pub authenticated_as: Option<AuthenticatedAs>,

    // The request.
    /// The epoch to begin: 1 or more, and one more at each attempt, as the acceptor may have
    /// begun an epoch of which the dialer never heard.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: FabricKind,
}
