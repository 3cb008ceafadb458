//! Decisions of a broker, for the engine to carry out.
#![forbid(unsafe_code)]

use super::SessionId;
use crate::credit::session::Term;

/// An action that the engine has to take for the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditAction {
    /// Pass it to [`Session::give`](crate::session::Session::give).
    Give {
        /// The session that gets it.
        session: SessionId,
        /// The amount.
        credit: u64,
        /// The term for which it is lent.
        term: Term,
    },
    /// Pass it to [`Session::recall`](crate::session::Session::recall), and report what
    /// comes back.
    Recall {
        /// The session that loses it.
        session: SessionId,
        /// The amount.
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
