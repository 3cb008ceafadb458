//! Reading of a node's handshake counts, and the warning of a certificate that expires.
#![forbid(unsafe_code)]

use std::time::{Duration, SystemTime};

use ibex_bootstrap::Local;
use ibex_tls::SecurityStats;

/// Reads the counts of a node, where it authenticates its peers.
pub(crate) fn security_stats(local: &Local) -> Option<SecurityStats> {
    local
        .credentials
        .as_ref()
        .map(|credentials| credentials.stats())
}

/// Warns in the log of a certificate that has expired or is about to.
pub(crate) fn warn_of_expiry(local: &Local, now: SystemTime) {
    let Some(expires) = security_stats(local).and_then(|stats| stats.certificate_expires) else {
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

/// Time before its expiry from which on a certificate is warned of.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);
