//! Resources of another process: limits on them for a while, and their use.

use std::{fs, io, process::Child};

use rustix::{
    process::{Pid, Resource, Rlimit, geteuid, getrlimit, prlimit, setrlimit},
    thread::{CapabilitySet, remove_capability_from_bounding_set},
};

/// Limits a resource of a process to `most`, or resets the limit to this process's own.
///
/// # Errors
/// The errors of prlimit(2).
pub fn limit(process: &Child, resource: Resource, most: Option<u64>) -> io::Result<()> {
    let ours = getrlimit(resource);
    let limit = Rlimit {
        current: most.or(ours.current),
        maximum: ours.maximum,
    };
    prlimit(Some(Pid::from_child(process)), resource, limit)?;
    Ok(())
}

/// Makes writing beyond the file size limit (RLIMIT_FSIZE) an error for this process and those that
/// it starts. By default the signal SIGXFSZ would kill the writer.
pub fn survive_full_files() {
    // SAFETY: it installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Makes the limit on locked memory hold for processes that this thread and later ones start, and
/// lifts this process's own limit. Root's processes are exempt otherwise. Has no effect if this
/// process is not root's.
///
/// # Errors
/// The errors of prctl(2) and setrlimit(2).
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

/// Limits a process's descriptors to those that it has open.
///
/// # Errors
/// The process has ended, or the errors of [`limit`].
pub fn starve(process: &Child) -> io::Result<()> {
    let open = fs::read_dir(format!("/proc/{}/fd", process.id()))?;
    limit(process, Resource::Nofile, Some(open.count() as u64))
}

/// Resets a process's limit of descriptors to this process's own.
///
/// # Errors
/// The errors of [`limit`].
pub fn relieve(process: &Child) -> io::Result<()> {
    limit(process, Resource::Nofile, None)
}
