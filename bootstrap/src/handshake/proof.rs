//! Proofs that an end of a resumption has the session's secret, by
//! [HMAC](https://www.rfc-editor.org/rfc/rfc2104).

use hmac_sha256::HMAC;
use ibex_base::field::WireField;

use crate::identity::Secret;
use crate::message::ResumedSession;
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
impl ResumedSession {
    /// Returns the proof by the end `by`.
    pub(super) fn proof(&self, by: Party, secret: &Secret, hellos: [&[u8]; 2]) -> [u8; 32] {
        self.mac(by, secret, hellos).finalize()
    }

    /// Returns whether `proof` is that of the end `by`, in constant time.
    pub(super) fn is_proven(
        &self,
        by: Party,
        secret: &Secret,
        hellos: [&[u8]; 2],
        proof: &[u8; 32],
    ) -> bool {
        self.mac(by, secret, hellos).finalize_verify(proof)
    }

    fn mac(&self, by: Party, secret: &Secret, hellos: [&[u8]; 2]) -> HMAC {
        let mut mac = HMAC::new(secret.expose());
        mac.update(LABEL);
        mac.update([u8::from(by == Party::Acceptor)]);
        let mut fields = Vec::new();
        self.write(&mut fields);
        mac.update(fields);
        hellos.iter().for_each(|hello| mac.update(hello));
        mac
    }
}

const LABEL: &[u8] = b"ibex resume 1";
