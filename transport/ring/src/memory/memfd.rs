//! Anonymous files that memory is mapped from.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::system::sysinfo;

use super::{MemoryError, MemoryUse, mapping::can_populate};

/// Makes a sealable memfd ([`memfd_create(2)`](https://man7.org/linux/man-pages/man2/memfd_create.2.html))
/// of exactly `bytes`, all of it backed by memory.
///
/// `fallocate` makes a lack of memory show here: without it the lack would show as SIGBUS, at the
/// first touch of the page that is missing. A size that the machine does not have at all is refused
/// before. The kernel's own heuristic does that for anonymous memory but not for files, and
/// `fallocate` would continue until the OOM killer strikes.
///
/// A memfd lives on the kernel's internal tmpfs, so the size of `/dev/shm`
/// (64 MB in a container) does not bound it; the memory limit does.
///
/// # Errors
/// [`MemoryError`] with the step that the kernel refused.
pub fn create_memfd(what: MemoryUse, bytes: usize) -> Result<OwnedFd, MemoryError> {
    let fd = create_unbacked(what, bytes)?;
    back(&fd, what, bytes)?;
    Ok(fd)
}

/// Makes the memfd of a ring, which memory backs as [`Backing`](super::Backing) populates it.
///
/// Kernels before Linux 5.14 cannot populate. There, memory backs all of the file from the start,
/// as in [`create_memfd`].
///
/// # Errors
/// [`MemoryError`] with the step that the kernel refused.
pub fn create_ring_memfd(capacity: usize) -> Result<OwnedFd, MemoryError> {
    let fd = create_unbacked(MemoryUse::Ring, capacity)?;
    if !can_populate() {
        back(&fd, MemoryUse::Ring, capacity)?;
    }
    Ok(fd)
}

/// Makes a sealable memfd of exactly `bytes`, which no memory backs yet.
///
/// # Errors
/// [`MemoryError`] with the step that the kernel refused.
pub(super) fn create_unbacked(what: MemoryUse, bytes: usize) -> Result<OwnedFd, MemoryError> {
    let refused = |step| move |errno: Errno| MemoryError::new(what, bytes, step, errno);

    let machine = sysinfo();
    let machine_bytes = (machine.totalram as u64)
        .saturating_add(machine.totalswap as u64)
        .saturating_mul(u64::from(machine.mem_unit));
    if bytes as u64 > machine_bytes {
        return Err(refused("sysinfo")(Errno::NOMEM));
    }

    let sealable = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let name = what.memfd_name();
    // A kernel of 6.3 or later may be set to refuse memory files that could be
    // executed (vm.memfd_noexec=2); an older one does not know the flag.
    let fd = match memfd_create(name, sealable | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, sealable),
        made => made,
    }
    .map_err(refused("memfd_create"))?;

    ftruncate(&fd, bytes as u64).map_err(refused("ftruncate"))?;
    Ok(fd)
}

fn back(fd: &OwnedFd, what: MemoryUse, bytes: usize) -> Result<(), MemoryError> {
    rustix::io::retry_on_intr(|| fallocate(fd, FallocateFlags::empty(), 0, bytes as u64))
        .map_err(|errno| MemoryError::new(what, bytes, "fallocate", errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    #[test]
    fn all_of_it_is_backed_before_anyone_touches_it() {
        let fd = create_memfd(MemoryUse::Ring, 128 << 10).unwrap();
        let stat = fstat(&fd).unwrap();
        assert_eq!(stat.st_size, 128 << 10);
        assert!(stat.st_blocks * 512 >= 128 << 10);
    }

    #[test]
    fn more_than_the_machine_has_is_an_error() {
        for bytes in [1 << 50, usize::MAX] {
            let error = create_memfd(MemoryUse::LargeMessage, bytes).unwrap_err();
            assert_eq!(error.what, MemoryUse::LargeMessage);
            assert_eq!(error.source.kind(), std::io::ErrorKind::OutOfMemory);
        }
    }
}
