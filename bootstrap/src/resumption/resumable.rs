//! What a node knows of the sessions that its peers may come back for.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_tls::AuthenticatedAs;

use crate::fabric::FabricKind;
use crate::identity::Secret;

/// The sessions that others may go on with.
pub trait ResumableSessions: fmt::Debug + Send + Sync {
    /// What is known of a session that is up or suspended; `None` for one that has ended.
    /// Where both ends of a session are this node's, it is that which accepted.
    ///
    /// Asked in a turn of the [`Acceptor`](crate::Acceptor), so it must not wait for long.
    fn find(&self, session_id: &[u8; 16]) -> Option<Resumable>;
}

/// A session that others may go on with.
#[derive(Clone, Debug)]
pub struct Resumable {
    /// Its secret.
    pub secret: Secret,
    /// Whom its peer proved to be when it began. Nobody else goes on with it.
    pub authenticated_as: Option<AuthenticatedAs>,
    /// The newest epoch that it has begun; 0 until it is resumed for the first time.
    pub epoch: u64,
    /// What it may go on over now.
    pub fabrics: Vec<FabricKind>,
    /// Why over nothing else, in words.
    pub reason: String,
}

impl Resumable {
    /// What keeps it from going on over `fabric`, if anything does.
    pub(crate) fn obstacle(&self, fabric: FabricKind) -> Option<String> {
        let is_among = self.fabrics.contains(&fabric);
        (!is_among).then(|| format!("over {fabric}: {}", self.reason))
    }
}
