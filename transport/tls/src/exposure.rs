//! Files of secrets that other users of the host can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Returns a warning if users outside the file's owner and group may read or change the file, with
/// `what` it has in it.
///
/// The group is left out, because it is how a service is given a secret that another user owns.
pub(crate) fn warning(path: &Path, what: &str) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & OTHERS != 0).then(|| {
        format!(
            "{} has the mode {mode:04o}, so other users of this host may get at the {what} in it; run \
             `chmod 600` on it, and replace the {what} if the host has such users",
            path.display()
        )
    })
}

/// Others may read or write.
const OTHERS: u32 = 0o006;
