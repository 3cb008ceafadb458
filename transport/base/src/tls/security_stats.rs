//! Counts of a node's authenticated handshakes, and of those that failed, by kind.

use std::{fmt, time::SystemTime};

/// Counts of a node's authenticated handshakes: those of new sessions and of resumed ones, dialed
/// and accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SecurityStats {
    /// Handshakes in which the peer has proven its identity.
    pub handshakes: u64,
    /// Peers that authenticate otherwise, or not at all.
    pub other_mode: u64,
    /// Peers with another secret.
    pub wrong_secret: u64,
    /// Certificates, of either end, of an authority that the other end does not trust.
    pub unknown_issuer: u64,
    /// Certificates, of either end, that have expired or are not valid yet.
    pub expired: u64,
    /// Certificates, of either end, that are revoked, or whose authority no revocation list covers.
    pub revoked: u64,
    /// Peers that `authorize` or `expect` refused, at either end.
    pub not_authorized: u64,
    /// Handshakes that failed otherwise: certificates that cannot be used, no cipher in common,
    /// bytes that are not TLS, or not those that were sent.
    pub other_failures: u64,
    /// The time at which this node's certificate expires; `None` with a shared secret.
    pub certificate_expires: Option<SystemTime>,
}

/// Writes the numbers that are not 0, in a line.
impl fmt::Display for SecurityStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handshakes {}", self.handshakes)?;
        for (name, count) in [
            ("other_mode", self.other_mode),
            ("wrong_secret", self.wrong_secret),
            ("unknown_issuer", self.unknown_issuer),
            ("expired", self.expired),
            ("revoked", self.revoked),
            ("not_authorized", self.not_authorized),
            ("other_failures", self.other_failures),
        ] {
            if count != 0 {
                write!(f, " {name} {count}")?;
            }
        }
        let left = self.certificate_expires.map(|expires| {
            let left = expires.duration_since(SystemTime::now());
            left.unwrap_or_default().as_secs() / 3600
        });
        match left {
            Some(hours) => write!(f, ", certificate good for {hours} hours"),
            None => Ok(()),
        }
    }
}
