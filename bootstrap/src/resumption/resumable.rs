//! A node's sessions that its peers may resume.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_base::tls::AuthenticatedAs;

use crate::fabric::FabricKind;
use crate::identity::Secret;

/// The sessions that peers may resume.
pub trait ResumableSessions: fmt::Debug + Send + Sync {
    /// Returns a session that is up or suspended; `None` if it has ended. Where both ends of a
    /// session are this node's, it is the accepting one.
    ///
    /// An [`Acceptor`](crate::Acceptor) calls this in its turn, so it must not wait for long.
    fn find(&self, session_id: &[u8; 16]) -> Option<Resumable>;
}

/// A session that peers may resume.
#[derive(Clone, Debug)]
pub struct Resumable {
    /// The session's secret.
    pub secret: Secret,
    /// The identity that its peer proved when the session began. No other peer resumes it.
    pub authenticated_as: Option<AuthenticatedAs>,
    /// The newest epoch that it has begun; 0 until it is resumed for the first time.
    pub epoch: u64,
    /// The fabrics over which it may resume now.
    pub fabrics: Vec<FabricKind>,
    /// The reason why no other fabric is possible, in words.
    pub reason: String,
}

impl Resumable {
    /// Returns the obstacle to resuming over `fabric`, if there is one.
    pub(crate) fn obstacle(&self, fabric: FabricKind) -> Option<String> {
        let is_among = self.fabrics.contains(&fabric);
        (!is_among).then(|| format!("over {fabric}: {}", self.reason))
    }
}
