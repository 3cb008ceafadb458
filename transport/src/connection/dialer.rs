//! Dialing the peer of a session again, which another crate does.

use std::{any::Any, fmt, sync::Arc};

use super::new_wire::NewWire;
use crate::session::Fabric;

/// The means of dialing the peer of a session again.
#[derive(Clone)]
pub struct Redial(Arc<dyn Fn(u64, Attempt) -> Box<dyn Any + Send> + Send + Sync>);

impl Redial {
    /// Makes the means from a function that begins one attempt to agree with the peer of this
    /// session of this node on new wires. It does not wait, and may be called in a turn.
    ///
    /// The outcome comes to the engine as [`Incoming::Redialed`](crate::engine::Incoming). Dropping
    /// the returned value cancels the attempt.
    pub fn new(
        begin: impl Fn(u64, Attempt) -> Box<dyn Any + Send> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(begin))
    }

    pub(super) fn begin(&self, session: u64, attempt: Attempt) -> Box<dyn Any + Send> {
        (self.0)(session, attempt)
    }
}

impl fmt::Debug for Redial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redial")
    }
}

/// The wire that a redial asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of the wire.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: Fabric,
}

/// The outcome of a redial.
#[derive(Debug)]
pub struct Redialed {
    /// The session of this node whose peer was dialed.
    pub session: u64,
    /// The number of the wire that was asked for.
    pub epoch: u64,
    /// The new wire, or the reason why there is none.
    pub outcome: Result<NewWire, RedialError>,
}

/// The reason why a redial gave no new wire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedialError {
    /// A later attempt may succeed.
    #[error("{0}")]
    NotYet(String),
    /// The peer's host refuses connections to the peer's address: no process listens there now. A
    /// later attempt may succeed.
    #[error("{0}")]
    Refused(String),
    /// The peer does not know the session: it was restarted, or has given the session up.
    #[error("{0}")]
    NoSession(String),
}
