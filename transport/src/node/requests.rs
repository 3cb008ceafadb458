//! The requests of a session's handles to the engine that turns the session.

use std::{any::Any, sync::Arc};

/// The way of a session's handles to its engine. `runtime/requests.rs` has its methods.
///
/// Each request does nothing if the session is over. A message that finds room, or is there, makes
/// none.
pub struct EngineRequests {
    /// The runtime that turns the engine, which this module does not know.
    pub(crate) runtime: Arc<dyn Any + Send + Sync>,
    pub(crate) session: u64,
}

/// Changes that handles leave for an engine without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A cold ring has records.
    Ready {
        /// The session.
        session: u64,
        /// The sending end.
        end: u32,
    },
    /// A receiving end's prefix moved.
    Released {
        /// The session.
        session: u64,
        /// The receiving end.
        end: u32,
    },
}
