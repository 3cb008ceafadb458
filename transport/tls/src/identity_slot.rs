//! The finding of one connection's verifier.

use std::sync::{Mutex, PoisonError};

use ibex_base::tls::{AuthenticatedAs, AuthenticationError};

/// The outcome of one connection's verification, from its verifier to its [`Tls`](crate::tls::Tls).
#[derive(Debug, Default)]
pub(crate) struct IdentitySlot(Mutex<Option<Result<AuthenticatedAs, AuthenticationError>>>);

impl IdentitySlot {
    pub(crate) fn set(&self, outcome: Result<AuthenticatedAs, AuthenticationError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    pub(crate) fn get(&self) -> Option<Result<AuthenticatedAs, AuthenticationError>> {
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.clone()
    }
}
