//! Dialing the peer of a session again, which another crate implements.

use std::{fmt, io, sync::Arc};

use super::new_wire::NewWire;
use crate::session::Fabric;

/// Dials the peer of a session again.
pub trait Redial: Send + Sync + fmt::Debug {
    /// Dials once and agrees on new wires. Blocks for a few seconds at most, and returns soon after
    /// `is_cancelled` becomes true.
    ///
    /// # Errors
    /// The peer does not answer, does not know the session, or does not support such wires.
    fn redial(
        &self,
        attempt: Attempt,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<NewWire, RedialError>;

    /// Runs `job` on a thread that may block.
    ///
    /// # Errors
    /// The system refuses another thread.
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// The wire that a redial asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of the wire.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: Fabric,
}

/// The reason why a redial gave no new wire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedialError {
    /// A later attempt may succeed.
    #[error("{0}")]
    NotYet(String),
    /// The peer does not know the session: it was restarted, or has given the session up.
    #[error("{0}")]
    NoSession(String),
}

/// A dial that a turn leaves until the engine's lock is released.
pub(crate) struct Redialing {
    pub(crate) session: u64,
    pub(crate) attempt: Attempt,
    pub(crate) redial: Arc<dyn Redial>,
}
