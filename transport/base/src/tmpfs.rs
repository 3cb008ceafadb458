//! Files that are in memory.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;

use rustix::{
    fs::{FsWord, fstatfs},
    io::Errno,
};

/// Returns whether a file is on `tmpfs`, as memory files are, other than those of huge pages.
///
/// # Errors
///
/// The kernel does not tell.
pub fn is_on_tmpfs(file: impl AsFd) -> Result<bool, Errno> {
    Ok(fstatfs(file)?.f_type == TMPFS_MAGIC)
}

/// The number of the file system; see [statfs(2)](https://man7.org/linux/man-pages/man2/statfs.2.html).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
