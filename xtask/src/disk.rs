//! The disk space that a whole run of the tests writes. A run that lacks it would fail late, and in
//! tests that have nothing to do with it.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use rustix::fs::statvfs;

use crate::failure::Failure;

/// Bytes that a whole run from a clean clone writes below the folder of the project.
const WHOLE_RUN: u64 = 10 * GIB;
/// Bytes that a run needs beside the builds that are there.
const LEAST: u64 = 2 * GIB;
const GIB: u64 = 1 << 30;
/// The unit of stat(2)'s `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Checks that the disk has room for a whole run in the project at `root`.
///
/// # Errors
///
/// A diagnosis that says how much is free, and how much is needed.
pub(crate) fn check(root: &Path) -> Result<(), Failure> {
    let space = statvfs(root).map_err(|error| {
        Failure::new(format!(
            "{}: asking for free space: {error}",
            root.display()
        ))
    })?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let needed = needed(size_of(&root.join("target")));
    match free < needed {
        true => Err(Failure::new(format!(
            "the disk of {} has {:.1} GiB free, and a whole run needs {:.1} GiB; free some, for example by `cargo clean`, or run single stages by `--stage`",
            root.display(),
            gib(free),
            gib(needed),
        ))),
        false => Ok(()),
    }
}

/// Returns what a run needs beside `built` bytes of earlier builds.
fn needed(built: u64) -> u64 {
    WHOLE_RUN.saturating_sub(built).max(LEAST)
}

#[expect(clippy::cast_precision_loss, reason = "the figure is for a person")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

/// Returns the bytes that the files below a folder take on the disk. A file with several names, as
/// cargo makes them, counts by parts. Files that cannot be read count as none.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size_of(&entry.path()),
            Ok(data) => data.blocks() * BLOCK_BYTES / data.nlink().max(1),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_builds_count_and_some_space_is_needed_in_any_case() {
        assert_eq!(needed(0), WHOLE_RUN);
        assert_eq!(needed(GIB), WHOLE_RUN - GIB);
        assert_eq!(needed(90 * GIB), LEAST);
    }

    #[test]
    fn files_of_all_folders_below_count() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let file = fs::metadata(source.join("disk.rs")).expect("this file");
        assert!(size_of(&source) > file.blocks() * BLOCK_BYTES);
        assert_eq!(size_of(&source.join("no such folder")), 0);
    }
}
