//! Counters of a node's handshakes, by kind of outcome.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use crate::{Cause, SecurityStats, TlsError};

/// Counters of a node's handshakes.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; KINDS]);

/// Kind of outcome: its counter's place.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Kind {
    Completed,
    OtherMode,
    WrongSecret,
    UnknownIssuer,
    Expired,
    Revoked,
    NotAuthorized,
    Other,
}

impl Counts {
    pub(crate) fn note(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, certificate_expires: Option<SystemTime>) -> SecurityStats {
        let count = |kind: Kind| self.0[kind as usize].load(Ordering::Relaxed);
        SecurityStats {
            handshakes: count(Kind::Completed),
            other_mode: count(Kind::OtherMode),
            wrong_secret: count(Kind::WrongSecret),
            unknown_issuer: count(Kind::UnknownIssuer),
            expired: count(Kind::Expired),
            revoked: count(Kind::Revoked),
            not_authorized: count(Kind::NotAuthorized),
            other_failures: count(Kind::Other),
            certificate_expires,
        }
    }
}

impl Kind {
    /// Returns the kind of a handshake's outcome.
    pub(crate) fn of(error: &TlsError) -> Kind {
        let TlsError::Refused(refusal) = error else {
            return Kind::Other;
        };
        match refusal.cause {
            Cause::WrongSecret => Kind::WrongSecret,
            Cause::UnknownIssuer | Cause::OtherAuthority => Kind::UnknownIssuer,
            Cause::Expired { .. } | Cause::NotYetValid { .. } => Kind::Expired,
            Cause::Revoked | Cause::UnknownRevocation => Kind::Revoked,
            Cause::NotAuthorized
            | Cause::NotExpected { .. }
            | Cause::AuthorizePanicked { .. }
            | Cause::ExpectPanicked { .. } => Kind::NotAuthorized,
            Cause::Nameless { .. } | Cause::Unusable(_) => Kind::Other,
        }
    }
}

const KINDS: usize = Kind::Other as usize + 1;
