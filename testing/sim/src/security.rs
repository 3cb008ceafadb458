//! Handshakes inside TLS: the keys of the simulated nodes, randomness that can be replayed, and
//! where the records of a handshake end.
//!
//! What follows the handshake is a session's, and goes over the simulated wires as it is. So a
//! machine is given one record at a time, and what is behind its last one is not its own.
#![forbid(unsafe_code)]

use std::sync::{Arc, OnceLock};

use ibex_harness::fixed_random;
use ibex_tls::{Credentials, Security, SharedSecret};

use super::{machine::Machine, random::Random};

/// Keys of the simulated nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cluster {
    /// That of both sides.
    Own,
    /// One with another secret.
    Foreign,
}

impl Cluster {
    /// Returns the keys of its nodes, which are derived once in a process.
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

/// Has all that TLS draws next follow from the simulation's seed.
pub(super) fn seed(random: &mut Random) {
    fixed_random::seed(random.next());
}

/// Bytes on their way to a machine, up to the end of its handshake.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// Bytes that are missing of the record whose beginning the machine has.
    left_of_record: usize,
}

impl Records {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Gives the machine the next piece of its handshake. Returns whether there was one.
    pub(super) fn feed(&mut self, machine: &mut dyn Machine) -> bool {
        let piece = match (machine.is_sealed(), self.left_of_record) {
            // The Hello, of which TLS does not know where it ends.
            (false, _) => self.bytes.len().min(1),
            (true, 0) => {
                let [_, _, _, high, low, ..] = *self.bytes else {
                    return false;
                };
                self.left_of_record = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
                self.left_of_record.min(self.bytes.len())
            }
            (true, left) => left.min(self.bytes.len()),
        };
        if piece == 0 {
            return false;
        }
        if machine.is_sealed() {
            self.left_of_record -= piece;
        }
        machine.handle_bytes(&self.bytes[..piece]);
        self.bytes.drain(..piece);
        true
    }

    /// What is behind the handshake.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.bytes
    }
}

/// Of a record: RFC 8446, section 5.1.
const HEADER_BYTES: usize = 5;
