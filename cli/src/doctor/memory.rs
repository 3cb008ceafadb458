//! Memory that is locked, shared or in huge pages, and the limits on it.

use rustix::fs::{MemfdFlags, memfd_create};

use super::Diagnosis;
use crate::devices::Device;
use crate::root::Root;

/// What a node locks with its first session over RDMA, with the default settings.
const LOCKED_BYTES: u64 = 36 << 20;

/// The least memory for which a limit is no obstacle: a few sessions with large messages.
const SMALL_BYTES: u64 = 256 << 20;

pub(super) fn check(root: &Root, devices: &[Device], diagnosis: &mut Diagnosis) {
    locked(root, devices, diagnosis);
    memory_files(root, diagnosis);
    control_group(root, diagnosis);
    huge_pages(root, diagnosis);
    // Programs of others stop at a small /dev/shm, so that people look for it here.
    diagnosis.fine(
        "dev-shm",
        "not used: ibex shares memory files (memfd), whatever /dev/shm has",
    );
}

fn locked(root: &Root, devices: &[Device], diagnosis: &mut Diagnosis) {
    const IPC_LOCK: u64 = 1 << 14;
    let capabilities = root.status("CapEff").unwrap_or_default();
    let capabilities = u64::from_str_radix(&capabilities, 16).unwrap_or(0);
    if capabilities & IPC_LOCK != 0 {
        return diagnosis.fine("memlock", "CAP_IPC_LOCK: no limit on locked memory holds");
    }
    let Some(limit) = root.soft_limit("Max locked memory") else {
        return diagnosis.fine("memlock", "no limit on locked memory");
    };
    if limit >= LOCKED_BYTES {
        return diagnosis.fine("memlock", format!("{} may be locked", bytes(limit)));
    }
    if devices.is_empty() {
        let text = format!(
            "{} may be locked, which matters to RDMA alone",
            bytes(limit)
        );
        return diagnosis.fine("memlock", text);
    }
    diagnosis.problem(
        "memlock",
        format!("This process may lock {}.", bytes(limit)),
        format!(
            "A device's memory is locked: a node locks {} with its first session over RDMA, and takes \
             tcp where it may not.",
            bytes(LOCKED_BYTES)
        ),
        "LimitMEMLOCK=infinity in the systemd unit; docker run --ulimit memlock=-1; or the line \
         `USER - memlock unlimited` in /etc/security/limits.conf and a new login",
    );
}

fn memory_files(root: &Root, diagnosis: &mut Diagnosis) {
    let why = "Shared memory is a memory file (memfd) that one process makes and hands to the other; \
               without it, sessions on one host take tcp.";
    // Later kernels add the seal themselves ("memfd: do not -EACCES old memfd_create() users with
    // vm.memfd_noexec=2", Linux 6.6).
    let kernel = root.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let is_strict = ["6.3.", "6.4.", "6.5."]
        .iter()
        .any(|kernel_of| kernel.starts_with(kernel_of));
    if is_strict && root.read("/proc/sys/vm/memfd_noexec").as_deref() == Some("2") {
        diagnosis.problem(
            "memfd",
            "vm.memfd_noexec is 2, and this kernel then refuses memory files without MFD_NOEXEC_SEAL.",
            why,
            "sysctl vm.memfd_noexec=1",
        );
    } else if root.is_machine()
        && let Err(errno) = memfd_create(
            c"ibex-doctor",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
    {
        diagnosis.problem(
            "memfd",
            format!("memfd_create failed: {errno}."),
            why,
            "allow memfd_create, fallocate and fcntl in the sandbox's seccomp profile",
        );
    }
    if let Some(limit) = root
        .soft_limit("Max file size")
        .filter(|limit| *limit < SMALL_BYTES)
    {
        diagnosis.problem(
            "memfd",
            format!(
                "Files of this process have {} at most (RLIMIT_FSIZE).",
                bytes(limit)
            ),
            "The limit holds for memory files too, so rings and large messages are refused.",
            "ulimit -f unlimited; in a systemd unit LimitFSIZE=infinity",
        );
    }
    diagnosis.fine("memfd", "memory files can be made");
}

fn control_group(root: &Root, diagnosis: &mut Diagnosis) {
    let own = root.read("/proc/self/cgroup");
    let own = own
        .as_deref()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("0::")));
    let mut folder = own.unwrap_or("/").trim_end_matches('/').to_owned();
    // A limit of a group holds for the groups in it.
    let mut least: Option<u64> = None;
    loop {
        let limit = root.read(&format!("/sys/fs/cgroup{folder}/memory.max"));
        let limit = limit.and_then(|limit| limit.parse().ok());
        least = least.into_iter().chain(limit).min();
        match folder.rsplit_once('/') {
            Some((above, _)) => folder = above.to_owned(),
            None => break,
        }
    }
    match least {
        Some(limit) if limit < SMALL_BYTES => diagnosis.warning(
            "memory-limit",
            format!("The control group of this process has {} of memory.", bytes(limit)),
            "Memory files and receive buffers count against it; beyond it the kernel kills the process.",
            "docker run --memory=1g; in a systemd unit MemoryMax=1G; or a lower `memory_limit` of the node",
        ),
        Some(limit) => diagnosis.fine("memory-limit", format!("the control group has {}", bytes(limit))),
        None => diagnosis.fine("memory-limit", "no control group limits memory"),
    }
}

fn huge_pages(root: &Root, diagnosis: &mut Diagnosis) {
    let setting = root.read("/sys/kernel/mm/transparent_hugepage/enabled");
    match setting.as_deref() {
        Some(setting) if setting.contains("[never]") => diagnosis.warning(
            "huge-pages",
            "The kernel gives no transparent huge pages.",
            "Large buffers then take 512 times as many page faults and entries of the TLB.",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(_) => diagnosis.fine("huge-pages", "memory that asks for huge pages gets them"),
        None => diagnosis.fine("huge-pages", "the kernel does not say that it has any"),
    }
}

/// Returns a size in its largest unit, rounded down.
fn bytes(size: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes")];
    let unit = units.into_iter().find(|(shift, _)| size >> shift > 0);
    let (shift, unit) = unit.unwrap_or((0, "bytes"));
    format!("{} {unit}", size >> shift)
}
