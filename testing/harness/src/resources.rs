//! Limits on resources, as this process and those that it starts take them.

use std::io;

use rustix::{
    process::{Resource, Rlimit, geteuid, setrlimit},
    thread::{CapabilitySet, remove_capability_from_bounding_set},
};

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
