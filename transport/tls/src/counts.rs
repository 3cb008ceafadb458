//! Counters of a node's handshakes, by kind of outcome.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use crate::{Cause, SecurityStats, TlsError};

/// Counters of a node's handshakes.
#[derive(Debug, Default)]
pub(crate) struct HandshakeCounts([AtomicU64; KINDS]);

/// Kind of outcome: its counter's place.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum HandshakeResult {
    Completed,
    OtherMode,
    WrongSecret,
    UnknownIssuer,
    Expired,
    Revoked,
    NotAuthorized,
    Other,
}

impl HandshakeCounts {
    pub(crate) fn note(&self, kind: HandshakeResult) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, certificate_expires: Option<SystemTime>) -> SecurityStats {
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
    pub(crate) fn of(error: &TlsError) -> HandshakeResult {
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
