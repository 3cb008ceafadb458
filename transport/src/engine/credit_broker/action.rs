//! What a broker has decided, for the engine to do.
#![forbid(unsafe_code)]

use super::SessionId;
use crate::engine::session_credit::Term;

/// What the engine is to do for the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditAction {
    /// Pass it to [`Session::give`](crate::engine::session::Session::give).
    Give {
        /// To whom.
        session: SessionId,
        /// How much.
        credit: u64,
        /// For how long.
        term: Term,
    },
    /// Pass it to [`Session::recall`](crate::engine::session::Session::recall), and report what
    /// comes back.
    Recall {
        /// From whom.
        session: SessionId,
        /// How much.
        credit: u64,
    },
}

impl CreditAction {
    /// Whom it is for.
    #[must_use]
    pub fn session(&self) -> SessionId {
        match *self {
            CreditAction::Give { session, .. } | CreditAction::Recall { session, .. } => session,
        }
    }
}
