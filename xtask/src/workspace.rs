//! Folders of the workspace.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

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

/// Returns the folders of the workspace at `root` whose crates are published; the root's own is
/// empty.
///
/// # Errors
/// A manifest cannot be read, or has no list of members.
pub(crate) fn published(root: &Path) -> Result<Vec<String>, Failure> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path);
        text.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    };
    let text = read(root.join("Cargo.toml"))?;
    let members = text.split_once("members = [");
    let members = members.and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.ok_or_else(|| Failure::new("the workspace has no members"))?;
    // The root's own crate is a member without being in the list.
    let listed = members.split('"').skip(1).step_by(2);
    let mut published = Vec::new();
    for member in [""].into_iter().chain(listed) {
        let is_of_others = member.starts_with("integrations/");
        if !is_of_others && !read(root.join(member).join("Cargo.toml"))?.contains("publish = false")
        {
            published.push(member.to_owned());
        }
    }
    Ok(published)
}
