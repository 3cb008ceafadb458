//! Counters of a node's handshakes, by kind of outcome.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use super::{Cause, SecurityStats, TlsError};

/// Counters of a node's handshakes.
#[derive(Debug, Default)]
pub struct HandshakeCounts([AtomicU64; KINDS]);

/// Kind of outcome: its counter's place.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum HandshakeResult {
    /// The peer has proven its identity.
    Completed,
    /// The peer authenticates otherwise, or not at all.
    OtherMode,
    /// The two ends have different secrets.
    WrongSecret,
    /// A certificate is of an authority that the other end does not trust.
    UnknownIssuer,
    /// A certificate has expired or is not valid yet.
    Expired,
    /// A certificate is revoked, or no revocation list covers its authority.
    Revoked,
    /// `authorize` or `expect` refused a peer.
    NotAuthorized,
    /// Any other failure.
    Other,
}

impl HandshakeCounts {
    /// Counts a handshake of that kind.
    pub fn note(&self, kind: HandshakeResult) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn snapshot(&self, certificate_expires: Option<SystemTime>) -> SecurityStats {
        let count = |kind: HandshakeResult| self.0[kind as usize].load(Ordering::Relaxed);
        SecurityStats {
            handshakes: count(HandshakeResult::Completed),
            other_mode: count(HandshakeResult::OtherMode),
            wrong_secret: count(HandshakeResult::WrongSecret),
            unknown_issuer: count(HandshakeResult::UnknownIssuer),
            expired: count(HandshakeResult::Expired),
            revoked: count(HandshakeResult::Revoked),
            not_authorized: count(HandshakeResult::NotAuthorized),
            other_failures: count(HandshakeResult::Other),
            certificate_expires,
        }
    }
}

impl HandshakeResult {
    /// Returns the kind of a handshake's outcome.
    #[must_use]
    pub fn of(error: &TlsError) -> HandshakeResult {
        let TlsError::Refused(refusal) = error else {
            return HandshakeResult::Other;
        };
        match refusal.cause {
            Cause::WrongSecret => HandshakeResult::WrongSecret,
            Cause::UnknownIssuer | Cause::OtherAuthority => HandshakeResult::UnknownIssuer,
            Cause::Expired { .. } | Cause::NotYetValid { .. } => HandshakeResult::Expired,
            Cause::Revoked | Cause::UnknownRevocation => HandshakeResult::Revoked,
            Cause::NotAuthorized
            | Cause::NotExpected { .. }
            | Cause::AuthorizePanicked { .. }
            | Cause::ExpectPanicked { .. } => HandshakeResult::NotAuthorized,
            Cause::Nameless { .. } | Cause::Unusable(_) => HandshakeResult::Other,
        }
    }
}

const KINDS: usize = HandshakeResult::Other as usize + 1;
