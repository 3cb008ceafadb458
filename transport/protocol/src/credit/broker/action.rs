//! Decisions of a broker, for the engine to carry out.
#![forbid(unsafe_code)]

use super::SessionId;
use crate::credit::session::Term;

/// What the engine is to do for the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditAction {
    /// Pass it to [`Session::give`](crate::session::Session::give).
    Give {
        /// To whom.
        session: SessionId,
        /// How much.
        credit: u64,
        /// For how long.
        term: Term,
    },
    /// Pass it to [`Session::recall`](crate::session::Session::recall), and report what
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
