//! Proofs that an end of a resumption has the session's secret, by
//! [HMAC](https://www.rfc-editor.org/rfc/rfc2104).

use hmac_sha256::HMAC;

use super::Prologue;
use crate::fabric::Fabric;
use crate::identity::Secret;
use crate::party::Party;

/// The claim that a session resumes over this connection.
///
/// A proof is HMAC-SHA256 under the session's secret, over:
///
/// - a label;
/// - the role of the proving end, so that no end can be answered with its own words;
/// - the session, the epoch and the fabric;
/// - both Hellos as they were on the wire, each of which has a nonce, so that a proof is worthless
///   in any other conversation.
///
/// All parts but the Hellos have fixed lengths, and the Hellos state theirs.
pub(super) struct ResumptionClaim<'a> {
    pub(super) session_id: &'a [u8; 16],
    pub(super) epoch: u64,
    pub(super) fabric: Fabric,
    pub(super) prologue: &'a Prologue,
}

impl ResumptionClaim<'_> {
    /// Returns the proof by the end `by`.
    pub(super) fn proof(&self, by: Party, secret: &Secret) -> [u8; 32] {
        self.mac(by, secret).finalize()
    }

    /// Returns whether `proof` is that of the end `by`, in constant time.
    pub(super) fn is_proven(&self, by: Party, secret: &Secret, proof: &[u8; 32]) -> bool {
        self.mac(by, secret).finalize_verify(proof)
    }

    fn mac(&self, by: Party, secret: &Secret) -> HMAC {
        let mut mac = HMAC::new(secret.expose());
        mac.update(LABEL);
        mac.update(match by {
            Party::Dialer => [0],
            Party::Acceptor => [1],
        });
        mac.update(self.session_id);
        mac.update(self.epoch.to_le_bytes());
        mac.update([self.fabric.to_wire()]);
        mac.update(&self.prologue.dialer);
        mac.update(&self.prologue.acceptor);
        mac
    }
}

const LABEL: &[u8] = b"ibex resume 1";
