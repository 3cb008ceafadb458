//! The log of a node about connections that did not become sessions.

use std::{
    error::Error,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use ibex_base::Address;
use ibex_bootstrap::{HandshakeError, HandshakeFailure, Problem};
use ibex_harness::events::Each;
use tracing::{
    Event,
    field::{Field, Visit},
};

/// Collects the failures that nodes of this process log from now on.
#[derive(Clone, Default)]
pub(crate) struct Log {
    failures: Arc<Mutex<Vec<Failure>>>,
}

/// A connection whose handshake failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) address: SocketAddr,
    pub(crate) error: HandshakeError,
    /// The text that an operator reads.
    pub(crate) said: String,
}

impl Log {
    /// Takes over this process's log, which a process can do once.
    pub(crate) fn take_over() -> Self {
        let log = Self::default();
        let collecting = log.clone();
        Each(move |event: &Event<'_>| event.record(&mut Reading(&collecting))).take_over();
        log
    }

    /// Returns all failures, the oldest first.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let failures = self.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets all failures.
    pub(crate) fn forget(&self) {
        let failures = self.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the failure of the connection from `address`.
    pub(crate) fn failure_from(&self, address: SocketAddr) -> Failure {
        let failures = self.failures();
        let mut from_there = failures.iter().filter(|failure| failure.address == address);
        let failure = from_there
            .next()
            .unwrap_or_else(|| panic!("nothing about {address} in {failures:?}"));
        assert!(from_there.next().is_none(), "{address} failed twice");
        failure.clone()
    }
}

struct Reading<'a>(&'a Log);

impl Visit for Reading<'_> {
    fn record_error(&mut self, _: &Field, error: &(dyn Error + 'static)) {
        let Some(failure) = error.downcast_ref::<HandshakeFailure>() else {
            return;
        };
        let address = failure.address.and_then(Address::inet);
        if let (Some(address), Problem::Handshake(error)) = (address, &failure.problem) {
            let failures = self.0.failures.lock();
            failures
                .unwrap_or_else(PoisonError::into_inner)
                .push(Failure {
                    address,
                    error: error.clone(),
                    said: failure.to_string(),
                });
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
