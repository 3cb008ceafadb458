//! rustdoc with its unstable options.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

use crate::workspace;

/// Writes a rustdoc that has its unstable options, and returns its path for the variable `RUSTDOC`.
///
/// Only rustdoc itself gets `RUSTC_BOOTSTRAP`: build scripts of dependencies read it too, and
/// everything would be built again with it.
pub(crate) fn unstable() -> io::Result<String> {
    let path = workspace::target().join("rustdoc-unstable");
    fs::write(&path, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    Ok(path.to_string_lossy().into_owned())
}
