//! Dialing the peer of a session again, which another crate implements.

use std::{any::Any, fmt};

use super::new_wire::NewWire;
use crate::session::Fabric;

/// Dials the peer of a session again.
pub trait Redial: Send + Sync + fmt::Debug {
    /// Begins one attempt to agree with the peer of `session`, a session of this node, on new wires.
    /// Does not wait, and may be called in a turn.
    ///
    /// The outcome comes to the engine as [`Incoming::Redialed`](crate::engine::Incoming). Dropping
    /// the returned value cancels the attempt.
    fn redial(&self, session: u64, attempt: Attempt) -> Box<dyn Any + Send>;
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
