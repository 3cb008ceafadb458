//! Handshakes inside TLS: the keys of the simulated nodes, reproducible randomness, and the
//! boundary between a handshake's records and the session.
//!
//! Bytes behind the handshake belong to a session, and travel over the simulated wires unencrypted.
//! A machine is therefore given one record at a time, and bytes behind its last record are not its
//! own.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock};

use ibex_bootstrap::handshake::Handshake;
use ibex_harness::{draw::Draw, fixed_random};
use ibex_tls::{Credentials, Security, SharedSecret};

/// Keys of the simulated nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cluster {
    /// The cluster of both sides.
    Own,
    /// A cluster with another secret.
    Foreign,
}

impl Cluster {
    /// Returns the keys of the cluster's nodes, which are derived once per process.
    pub(super) fn credentials(self) -> Arc<Credentials> {
        static KEYS: [OnceLock<Arc<Credentials>>; 2] = [OnceLock::new(), OnceLock::new()];
        let open = || {
            let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ self as u8);
            let secret = SharedSecret::from_bytes(bytes).expect("bytes that look random");
            let security = Security::shared_secret(secret).provider(fixed_random::provider());
            Arc::new(security.open().expect("keys of the fixed provider"))
        };
        KEYS[self as usize].get_or_init(open).clone()
    }
}

/// Makes TLS draw from the simulation's seed from now on.
pub(super) fn seed(random: &mut Draw) {
    fixed_random::seed(random.word());
}

/// Bytes on their way to a machine, up to the end of its handshake.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// The bytes that the machine has of a record's header (RFC 8446, section 5.1), until it has all of them.
    header: Vec<u8>,
    /// Missing bytes of the record whose header the machine has.
    left_of_record: usize,
}

impl Records {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Gives the machine the next piece of its handshake. Returns whether there was one.
    pub(super) fn feed(&mut self, machine: &mut Handshake) -> bool {
        // The Hello is outside TLS, which does not know its end. A header is passed byte by byte,
        // since no more bytes than those of its record are the machine's.
        let piece = self.left_of_record.max(1).min(self.bytes.len());
        if piece == 0 {
            return false;
        }
        let bytes: Vec<u8> = self.bytes.drain(..piece).collect();
        if self.left_of_record > 0 {
            self.left_of_record -= piece;
        } else if machine.is_sealed() {
            self.header.extend_from_slice(&bytes);
            if let [_, _, _, high, low] = *self.header {
                self.left_of_record = u16::from_be_bytes([high, low]).into();
                self.header.clear();
            }
        }
        machine.handle_bytes(&bytes);
        true
    }

    /// Returns the bytes behind the handshake.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.bytes
    }
}
