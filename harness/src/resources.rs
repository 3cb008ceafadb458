//! What another process may have, and has: to take it away for a while.

use std::{fs, io, process::Child};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Limits something of a process to `most`, or again to what this process itself may have.
///
/// # Errors
/// As of prlimit(2).
pub fn limit(process: &Child, resource: Resource, most: Option<u64>) -> io::Result<()> {
    let ours = getrlimit(resource);
    let limit = Rlimit {
        current: most.or(ours.current),
        maximum: ours.maximum,
    };
    prlimit(Some(Pid::from_child(process)), resource, limit)?;
    Ok(())
}

/// Lets a process have no more descriptors than it has open.
///
/// # Errors
/// If it has ended, or as of [`limit`].
pub fn starve(process: &Child) -> io::Result<()> {
    let open = fs::read_dir(format!("/proc/{}/fd", process.id()))?;
    limit(process, Resource::Nofile, Some(open.count() as u64))
}

/// Lets a process have as many descriptors again as this one may.
///
/// # Errors
/// As of [`limit`].
pub fn relieve(process: &Child) -> io::Result<()> {
    limit(process, Resource::Nofile, None)
}
