//! The kernel's answers about this process's memory, for tests.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// Returns how many pages of a range are in memory, by
/// [`/proc/self/pagemap`](https://docs.kernel.org/admin-guide/mm/pagemap.html): bit 63 means "page
/// present".
pub fn resident_pages(base: NonNull<u8>, bytes: usize) -> usize {
    let page = rustix::param::page_size();
    let mut entries = vec![0; bytes / page * 8];
    let first = base.as_ptr().addr() / page * 8;
    File::open("/proc/self/pagemap")
        .unwrap()
        .read_exact_at(&mut entries, first as u64)
        .unwrap();
    entries
        .chunks_exact(8)
        .filter(|entry| entry[7] & 0x80 != 0)
        .count()
}

/// Returns whether the mapping that begins at `base`, or contains it, is writable.
pub fn is_writable(base: NonNull<u8>) -> bool {
    let address = base.as_ptr().addr();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let permissions = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let bound = |hex| usize::from_str_radix(hex, 16).unwrap();
        (bound(start)..bound(end))
            .contains(&address)
            .then_some(rest)
    });
    permissions.expect("it is mapped").starts_with("rw")
}

/// The file's inode, which `/proc/self/maps` shows for each of its mappings.
pub fn inode(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

/// Returns how many mappings of that memfd this process has.
pub fn mappings_of(inode: u64) -> usize {
    let inode = inode.to_string();
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| {
            line.contains("memfd:ibex") && line.split_whitespace().nth(4) == Some(&inode)
        })
        .count()
}
