//! How much memory a region takes while it moves to a file that peers map, and away from it. The only
//! test of its program, since the kernel counts for the process.

use std::{fs, os::fd::AsFd};

use ibex_ring::memory::{Access, Mapping, MemoryUse, Region, leave_to_peers, share_region};

#[test]
fn a_region_moves_without_existing_twice() {
    let mut region = Region::zeroed(BYTES).unwrap();
    region.get_mut().unwrap().fill(7);
    let before = most_resident();
    let slice = region.slice(..);
    let (file, _) = share_region(&slice, |_, _| Ok(())).unwrap().unwrap();
    let moved = most_resident() - before;
    assert!(moved <= PIECE + SLACK, "{} MiB more to move", moved >> 20);

    // A peer holds a message, and its channel ends: nothing is copied before a change.
    let (what, access) = (MemoryUse::LargeMessage, Access::ReadOnly);
    let passed = file.for_peer().unwrap();
    let held = Mapping::of_file(what, passed.as_fd(), 4096, access).unwrap();
    drop(passed);
    leave_to_peers(&slice, &file);
    drop((slice, file));
    let left = most_resident() - before;
    assert!(left <= PIECE + SLACK, "{} MiB more", left >> 20);

    // The peer goes, and nothing is copied at all.
    drop(held);
    region.get_mut().unwrap().fill(8);
    let changed = most_resident() - before;
    assert!(changed <= PIECE + SLACK, "{} MiB more", changed >> 20);
}

/// Returns the most bytes that this process has had in memory.
fn most_resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() << 10
}

const BYTES: usize = 256 << 20;
const PIECE: usize = 4 << 20;
/// What the kernel's count may be wrong by.
const SLACK: usize = 4 << 20;
