//! Dialing the peer of a session again, which this crate has somebody else do.

use std::{fmt, io, sync::Arc};

use super::new_wire::NewWire;
use crate::session::Fabric;

/// How the peer of a session is dialed again.
pub trait Redial: Send + Sync + fmt::Debug {
    /// Dials once and agrees on new wires. Blocks for a few seconds at the most, and hardly
    /// longer than until `is_cancelled`.
    ///
    /// # Errors
    /// Nobody is there, or somebody who has no such session, or not such wires.
    fn redial(
        &self,
        attempt: Attempt,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<NewWire, RedialError>;

    /// Has `job` done on a thread that may block.
    ///
    /// # Errors
    /// The system gives no thread for it.
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// The wire that is asked for when a peer is dialed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of the wire.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: Fabric,
}

/// The reason why there is no new wire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedialError {
    /// There may be one later.
    #[error("{0}")]
    NotYet(String),
    /// The peer has no such session: it runs anew, or has given the session up.
    #[error("{0}")]
    NoSession(String),
}

/// A dial that a turn leaves for after the engine's lock.
pub(crate) struct Redialing {
    pub(crate) session: u64,
    pub(crate) attempt: Attempt,
    pub(crate) redial: Arc<dyn Redial>,
}
