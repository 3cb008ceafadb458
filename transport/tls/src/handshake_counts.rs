//! Counts of a node's authenticated handshakes, and of those that failed, by kind.

#[cfg(feature = "rustls")]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "rustls")]
use crate::{Cause, TlsError};

/// A snapshot of what a node's handshakes came to, at both of its ends and for new sessions and
/// resumed ones alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Handshakes in which the peer has proven who it is.
    pub completed: u64,
    /// Peers that authenticate otherwise, or not at all.
    pub other_mode: u64,
    /// Peers with another secret.
    pub wrong_secret: u64,
    /// Certificates, of either end, of an authority that the other end does not trust.
    pub unknown_issuer: u64,
    /// Certificates, of either end, that have expired or are not valid yet.
    pub expired: u64,
    /// Certificates, of either end, that are revoked, or of which no revocation list tells.
    pub revoked: u64,
    /// Peers that `authorize` refused, at either end.
    pub not_authorized: u64,
    /// Handshakes that failed otherwise: certificates that cannot be used, no cipher in common,
    /// bytes that are not TLS, or not those that were sent.
    pub other_failures: u64,
}

/// The counters behind that.
#[cfg(feature = "rustls")]
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; KINDS]);

/// Kind of outcome: its counter's place.
#[cfg(feature = "rustls")]
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

#[cfg(feature = "rustls")]
impl Counts {
    pub(crate) fn note(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> HandshakeCounts {
        let count = |kind: Kind| self.0[kind as usize].load(Ordering::Relaxed);
        HandshakeCounts {
            completed: count(Kind::Completed),
            other_mode: count(Kind::OtherMode),
            wrong_secret: count(Kind::WrongSecret),
            unknown_issuer: count(Kind::UnknownIssuer),
            expired: count(Kind::Expired),
            revoked: count(Kind::Revoked),
            not_authorized: count(Kind::NotAuthorized),
            other_failures: count(Kind::Other),
        }
    }
}

#[cfg(feature = "rustls")]
impl Kind {
    /// The kind of what ended a handshake.
    pub(crate) fn of(error: &TlsError) -> Kind {
        let TlsError::Refused(refusal) = error else {
            return Kind::Other;
        };
        match refusal.cause {
            Cause::WrongSecret => Kind::WrongSecret,
            Cause::UnknownIssuer => Kind::UnknownIssuer,
            Cause::Expired { .. } | Cause::NotYetValid { .. } => Kind::Expired,
            Cause::Revoked | Cause::UnknownRevocation => Kind::Revoked,
            Cause::NotAuthorized => Kind::NotAuthorized,
            Cause::Nameless { .. } | Cause::Unusable(_) => Kind::Other,
        }
    }
}

#[cfg(feature = "rustls")]
const KINDS: usize = Kind::Other as usize + 1;
