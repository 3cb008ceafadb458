//! What another process may have, and has: to take it away for a while.

use std::{fs, io, process::Child};

use rustix::{
    process::{Pid, Resource, Rlimit, geteuid, getrlimit, prlimit, setrlimit},
    thread::{CapabilitySet, remove_capability_from_bounding_set},
};

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

/// Has a file that is full to the limit (RLIMIT_FSIZE) be an error, for this process and those
/// that it starts: the signal that comes with it, SIGXFSZ, kills who has no other wish.
pub fn survive_full_files() {
    // SAFETY: it installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Has processes that this one starts, and its threads start, be held to their limit on locked
/// memory, which this process's own becomes none for: root's are exempt otherwise. A process of
/// another user is left what it has.
///
/// # Errors
/// As of prctl(2) and setrlimit(2).
pub fn hold_to_locked_memory() -> io::Result<()> {
    if geteuid().is_root() {
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        setrlimit(Resource::Memlock, unlimited)?;
        remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK)?;
    }
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
