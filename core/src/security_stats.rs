//! Reading of a node's handshake counts, and the warnings about its certificate and files.
#![forbid(unsafe_code)]

use std::time::SystemTime;

use ibex_base::tls::SecurityStats;
use ibex_bootstrap::Local;

/// Reads the counts of a node, where it authenticates its peers.
pub(crate) fn security_stats(local: &Local) -> Option<SecurityStats> {
    local
        .credentials
        .as_ref()
        .map(|credentials| credentials.stats())
}

/// Warns in the log of a certificate that expires soon, and of files that other users can read.
pub(crate) fn warn_of_credentials(local: &Local, now: SystemTime) {
    if let Some(credentials) = &local.credentials {
        for warning in credentials.warnings(now) {
            warn_limited!(warning, "{warning}");
        }
    }
}
