//! The outcome of a handshake.
#![forbid(unsafe_code)]

use ibex_base::tls::AuthenticatedAs;
use ibex_bootstrap::{
    Fabric, Incarnation, NodeIdentity, ResumeTicket, Secret,
    handshake::{Agreement, ResumedSession},
};

/// The outcome of a handshake.
#[derive(Clone, Debug)]
pub(super) struct Met {
    pub(super) session: [u8; 16],
    /// The secret of a new session; `None` for a resumed one.
    pub(super) secret: Option<Secret>,
    /// The epoch; 0 for a new session.
    pub(super) epoch: u64,
    pub(super) fabric: Fabric,
    /// The node that began the session with this one, and its incarnation.
    peer: Option<(NodeIdentity, Incarnation)>,
    /// The peer's proven identity, if nodes are authenticated.
    authenticated_as: Option<AuthenticatedAs>,
}

impl Met {
    pub(super) fn begins(agreement: &Agreement) -> Self {
        Self {
            session: agreement.session_id,
            secret: Some(agreement.resume_secret.clone()),
            epoch: 0,
            fabric: agreement.fabric,
            peer: Some((agreement.peer.identity, agreement.peer.incarnation)),
            authenticated_as: agreement.authenticated_as.clone(),
        }
    }

    pub(super) fn goes_on(session: &ResumedSession) -> Self {
        Self {
            session: session.session_id,
            secret: None,
            epoch: session.epoch,
            fabric: session.fabric,
            peer: None,
            authenticated_as: None,
        }
    }

    /// Returns whether both ends of a handshake agree on the outcome.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.session == other.session
            && self.secret == other.secret
            && self.epoch == other.epoch
            && self.fabric == other.fabric
    }

    /// Returns the ticket by which this side can resume a new session.
    pub(super) fn ticket(&self) -> Option<ResumeTicket> {
        let (peer, incarnation) = self.peer?;
        Some(ResumeTicket {
            authenticated_as: self.authenticated_as.clone(),
            session_id: self.session,
            secret: self.secret.clone()?,
            peer,
            incarnation,
            epoch: self.epoch,
            fabric: self.fabric,
        })
    }
}
