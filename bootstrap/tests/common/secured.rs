//! Nodes that authenticate each other, and the first bytes of such a dialer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibex_base::tls::TlsCredentials;
use ibex_bootstrap::handshake::Handshake;
use ibex_bootstrap::{HostHint, Local};
use ibex_tls::{Credentials, Security, SharedSecret};

/// Gives a node the secret that all nodes here have.
pub(crate) fn secured(mut local: Local) -> Local {
    local.credentials = Some(Arc::new(credentials()));
    local
}

fn credentials() -> Credentials {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(9));
    let secret = SharedSecret::from_bytes(bytes).unwrap();
    Security::shared_secret(secret).open().unwrap()
}

/// Returns what a dialer may send before it receives anything, if it guesses the other's mode: its
/// Hello, and the first flight of TLS, which makes the acceptor compute.
pub(crate) fn first_flights(dialer: &Local) -> Vec<u8> {
    let host = HostHint {
        boot_id: [1; 16],
        pid: 1,
        uid: 1,
        pid_namespace: 1,
        network_namespace: 1,
    };
    let now = Instant::now();
    let deadline = now + Duration::from_secs(5);
    let mut machine = Handshake::dial(dialer, host, [7; 16], now, deadline);
    let mut flights = machine.poll_transmit().unwrap();
    let mut tls = credentials().dialer(None).unwrap();
    tls.receive(&[], &mut |_| {}).unwrap();
    flights.extend_from_slice(tls.outgoing());
    flights
}
