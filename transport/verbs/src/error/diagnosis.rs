//! What a refusal means, and what to do about it.
#![forbid(unsafe_code)]

use std::fmt;

use rustix::io::Errno;

use crate::{LockedMemory, PartitionKey, VerbsError};

impl VerbsError {
    /// Refuses a setting outside its range.
    pub(crate) fn setting(
        setting: &'static str,
        given: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Setting {
            setting,
            given: given.to_string(),
            allowed: allowed.into(),
        }
    }

    /// Creates the error for a queue that was refused although no known limit of the device forbids
    /// it. The driver decides how much locked memory the queue takes.
    pub(crate) fn creation(
        device: &str,
        call: &'static str,
        locked: LockedMemory,
        source: Errno,
    ) -> Self {
        let device = device.to_owned();
        match (source, locked.limit) {
            (Errno::NOMEM | Errno::AGAIN, Some(limit)) => Self::QueueMemory {
                device,
                call,
                already: locked.pinned,
                limit,
                source,
            },
            _ => Self::Call {
                device,
                call,
                source,
                consequence: match source {
                    Errno::NOMEM | Errno::AGAIN => "the device has no room for it",
                    _ => consequence(
                        source,
                        "the device refuses what is within all limits that it tells",
                    ),
                },
            },
        }
    }

    /// Makes the error of a refused registration, which names the limit on locked memory if that is
    /// the cause.
    pub(crate) fn registration(
        device: &str,
        bytes: u64,
        locked: LockedMemory,
        source: Errno,
    ) -> Self {
        // The kernel answers ENOMEM both for the limit and for a real lack. Below the limit it was
        // a real lack (ib_umem_get, drivers/infiniband/core/umem.c). If the limit is 0, the kernel
        // answers EPERM (can_do_mlock, mm/mlock.c).
        match (source, locked.limit_passed_by(bytes)) {
            (Errno::NOMEM | Errno::AGAIN | Errno::PERM, Some(limit)) => Self::MemoryLock {
                device: device.to_owned(),
                bytes,
                already: locked.pinned,
                limit,
                source,
            },
            _ => Self::Call {
                device: device.to_owned(),
                call: "ibv_reg_mr",
                source,
                consequence: consequence(
                    source,
                    "the memory stays unregistered; free memory or register less",
                ),
            },
        }
    }
}

pub(super) fn different_partitions(ours: PartitionKey, theirs: PartitionKey) -> String {
    if ours.is_of_same_partition(theirs) {
        return format!(
            "both ends' ports are limited members of their partition (keys {ours} and {theirs}), and \
             such cannot talk to each other; have the subnet manager make one of them a full member"
        );
    }
    format!(
        "the two ends' ports are in different partitions: our key is {ours}, the peer's {theirs}; \
         have both connections run over interfaces of one partition, or set partition_key or \
         IBEX_RDMA_PARTITION_KEY at both ends"
    )
}

pub(super) fn open_step(source: Errno) -> &'static str {
    match source {
        Errno::ACCESS | Errno::PERM => {
            "let this user read and write /dev/infiniband/uverbs* (group rdma; systemd: \
             PrivateDevices=no or DeviceAllow=)"
        }
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            "its file in /dev/infiniband is missing, or not this user's to read and write: give \
             the container --device=/dev/infiniband, the service PrivateDevices=no, the user the \
             file's group (rdma)"
        }
        Errno::OPNOTSUPP | Errno::NOSYS => {
            "its provider library is missing or too old for the kernel: install ibverbs-providers"
        }
        Errno::MFILE | Errno::NFILE => MORE_FILES,
        _ => "see the kernel's log",
    }
}

pub(super) fn list_step(source: Errno) -> String {
    match source {
        Errno::MFILE | Errno::NFILE => format!("; {MORE_FILES}"),
        _ => String::new(),
    }
}

/// Returns what an errno means for the caller. A driver answers `EIO` to each verb of a device that it
/// has lost, whatever the verb would do otherwise.
pub(crate) fn consequence(source: Errno, otherwise: &'static str) -> &'static str {
    match source {
        Errno::IO => {
            "the device was removed or has failed; open it again when it is in the list of devices"
        }
        _ => otherwise,
    }
}

const MORE_FILES: &str = "raise the limit of open files (ulimit -n)";

pub(super) fn list<T: fmt::Display>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}
