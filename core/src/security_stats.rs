//! The warnings about its certificate and files.
#![forbid(unsafe_code)]

use std::time::SystemTime;

use ibex_bootstrap::Local;

/// Warns in the log of a certificate that expires soon, and of files that other users can read.
pub(crate) fn warn_of_credentials(local: &Local, now: SystemTime) {
    if let Some(credentials) = &local.credentials {
        for warning in credentials.warnings(now) {
            warn_limited!(warning, "{warning}");
        }
    }
}
