//! Counts of a node's authentication.
#![forbid(unsafe_code)]

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use ibex_bootstrap::Local;
use ibex_tls::HandshakeCounts;

/// Counts of a node's authenticated handshakes, in a [`NodeStats`](crate::NodeStats): those of
/// new sessions and of resumed ones, dialed and accepted.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SecurityStats {
    /// Handshakes in which the peer has proven who it is.
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
    /// Peers that `authorize` refused, at either end.
    pub not_authorized: u64,
    /// Handshakes that failed otherwise, as where bytes were no TLS or were changed on the way.
    pub other_failures: u64,
    /// When this node's certificate expires; none with a shared secret.
    pub certificate_expires: Option<SystemTime>,
}

impl SecurityStats {
    /// Reads those of a node, where it authenticates its peers.
    pub(crate) fn of(local: &Local) -> Option<Self> {
        let credentials = local.credentials.as_ref()?;
        let HandshakeCounts {
            completed,
            other_mode,
            wrong_secret,
            unknown_issuer,
            expired,
            revoked,
            not_authorized,
            other_failures,
            ..
        } = credentials.counts();
        let since_1970 = credentials.expires().map(Duration::from_secs);
        Some(Self {
            handshakes: completed,
            other_mode,
            wrong_secret,
            unknown_issuer,
            expired,
            revoked,
            not_authorized,
            other_failures,
            certificate_expires: since_1970
                .and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
        })
    }

    /// Warns in the log of a certificate that has expired or is about to.
    pub(crate) fn warn_of_expiry(&self, now: SystemTime) {
        let Some(expires) = self.certificate_expires else {
            return;
        };
        match expires.duration_since(now) {
            Ok(left) if left > SOON => {}
            Ok(left) => tracing::warn!(
                hours = left.as_secs() / 3600,
                "this node's certificate expires soon; replace its files and call \
                 reload_certificates"
            ),
            Err(_) => tracing::warn!(
                "this node's certificate has expired, and peers refuse it; replace its files and \
                 call reload_certificates, or check the clock"
            ),
        }
    }
}

/// Shows the numbers that are not 0, in a line.
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

/// When a certificate is about to expire.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);
