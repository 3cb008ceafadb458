//! Folders of the workspace.

use std::env;
use std::path::{Path, PathBuf};

/// Returns the root of the repository, whatever the current directory.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace")
}

/// Returns cargo's build folder.
pub(crate) fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(target)
}
