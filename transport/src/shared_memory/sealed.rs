//! Sealed memory files, which one side writes and whose size and backing the other may rely on.
//!
//! The owner sizes the file, backs all of it (`fallocate`; a ring has holes, see `ring_segment`),
//! maps it writable and then seals it.
//! From then on no process can shrink it (so no SIGBUS), grow it, write it, map it writable or
//! punch holes into it, except through the mappings that existed before the seals. Only then is the
//! descriptor passed. The peer checks all of that before it maps the file, so that neither side
//! depends on the other's later actions:
//!
//! - only the owner's stores change the owner's bytes, so a `&mut` into them is sound whatever the
//!   peer does;
//! - the peer's mapping stays readable whatever the owner does.
//!
//! See [memfd_create(2)](https://man7.org/linux/man-pages/man2/memfd_create.2.html),
//! [fcntl(2)](https://man7.org/linux/man-pages/man2/fcntl.2.html) "File Sealing".
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};

use ibex_base::is_on_tmpfs;
use ibex_ring::memory::{MemoryError, MemoryUse};

/// The seals of a segment, on which a peer may rely once it has checked them; see
/// [memfd_create(2)](https://man7.org/linux/man-pages/man2/memfd_create.2.html).
pub(super) const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// Seals a memory file whose writable mappings all exist already.
pub(super) fn seal(fd: impl AsFd, what: MemoryUse, bytes: usize) -> Result<(), MemoryError> {
    fcntl_add_seals(fd, SEALS).map_err(|errno| MemoryError::new(what, bytes, "F_ADD_SEALS", errno))
}

/// Checks that a peer's memory file is sealed, has exactly `bytes` and is fully backed. Seals
/// cannot be removed, so the result holds for ever.
pub(super) fn check(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), SegmentRefused> {
    let backed = check_with_holes(fd, bytes)?;
    // This process's first access would fill a hole, out of its own memory.
    if backed < bytes {
        return Err(SegmentRefused::NotBacked {
            backed,
            announced: bytes,
        });
    }
    Ok(())
}

/// Like [`check`], but memory need not back all of the file. Returns the bytes that it backs.
pub(super) fn check_with_holes(fd: BorrowedFd<'_>, bytes: u64) -> Result<u64, SegmentRefused> {
    check_kind(fd)?;
    let stat = fstat(fd).map_err(|errno| SegmentRefused::NotAMemoryFile {
        source: errno.into(),
    })?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found != bytes {
        return Err(SegmentRefused::WrongSize {
            found,
            announced: bytes,
        });
    }
    // st_blocks counts units of 512 bytes on every file system (stat(2)).
    let backed = u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512);
    // The last process to unmap the file frees all of its memory, including memory beyond the
    // file's end.
    if backed > bytes.next_multiple_of(HUGE_PAGE_BYTES) {
        return Err(SegmentRefused::BackedBeyond {
            backed,
            announced: bytes,
        });
    }
    Ok(backed)
}

/// Checks that a peer's descriptor refers to a sealed memory file. Never waits, whatever the
/// descriptor refers to: the check asks for its seals first, and only files that live in memory
/// have seals.
pub(crate) fn check_kind(fd: BorrowedFd<'_>) -> Result<(), SegmentRefused> {
    let seals = fcntl_get_seals(fd).map_err(|errno| SegmentRefused::NotAMemoryFile {
        source: errno.into(),
    })?;
    if !seals.contains(SEALS) {
        return Err(SegmentRefused::NotSealed {
            seals: seals.bits(),
            needed: SEALS.bits(),
        });
    }
    // An access to a file of huge pages ends this process by SIGBUS where there are none left.
    match is_on_tmpfs(fd) {
        Ok(true) => Ok(()),
        Ok(false) => Err(SegmentRefused::NotAMemoryFile {
            source: io::Error::other("it is of another file system than tmpfs"),
        }),
        Err(errno) => Err(SegmentRefused::NotAMemoryFile {
            source: errno.into(),
        }),
    }
}

/// The reason why a segment that the peer passed was not mapped.
///
/// All variants but [`SegmentRefused::Memory`] mean that the peer broke the protocol.
#[derive(Debug, thiserror::Error)]
pub enum SegmentRefused {
    /// The descriptor refers to a file that cannot be sealed.
    #[error("the peer passed a descriptor that is no memory file ({source}); closing the session")]
    NotAMemoryFile {
        /// The kernel's error.
        r#source: io::Error,
    },
    /// A seal is missing, so the peer could take the memory away at any time.
    #[error(
        "the peer passed a segment with seals {seals:#x} where {needed:#x} are needed: \
         it could still be changed; closing the session"
    )]
    NotSealed {
        /// The seals that the file has.
        seals: u32,
        /// The seals that the file must have.
        needed: u32,
    },
    /// The file is longer or shorter than the peer announced.
    #[error(
        "the peer passed a segment of {found} bytes and announced {announced}; closing the session"
    )]
    WrongSize {
        /// The file's length.
        found: u64,
        /// The length that the peer announced.
        announced: u64,
    },
    /// The file has holes, which this process's memory would have to fill.
    #[error(
        "the peer passed a segment of {announced} bytes of which only {backed} are backed by \
         memory; closing the session"
    )]
    NotBacked {
        /// Bytes that are backed.
        backed: u64,
        /// The length that the peer announced.
        announced: u64,
    },
    /// The file has memory beyond its end, which this process would have to free.
    #[error(
        "the peer passed a segment of {announced} bytes that {backed} bytes of memory belong to; \
         closing the session"
    )]
    BackedBeyond {
        /// Bytes that are backed.
        backed: u64,
        /// The length that the peer announced.
        announced: u64,
    },
    /// The announced length is impossible.
    #[error(
        "the peer announced a segment of {announced} bytes, which cannot be a segment here; \
         closing the session"
    )]
    Impossible {
        /// The length that the peer announced.
        announced: u64,
    },
    /// The peer named a slot that was never filled, or that does not exist.
    #[error(
        "the peer announced a message of {length} bytes from byte {offset} on in slot {slot}, which \
         holds {capacity}; closing the session"
    )]
    NoSuchSlot {
        /// The slot that the peer named.
        slot: u32,
        /// The byte of the slot's segment at which the message begins.
        offset: u64,
        /// The message's length that the peer announced.
        length: u64,
        /// The length of the slot's segment at this end; 0 if the slot is empty.
        capacity: u64,
    },
    /// This process has no room for the mapping.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Bytes of a huge page: a file may end within one, which is backed as a whole.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_ring::memory::{Access, Mapping, create_memfd};
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    const BYTES: usize = 64 << 10;

    fn sealed() -> OwnedFd {
        let fd = create_memfd(MemoryUse::Ring, BYTES).unwrap();
        seal(&fd, MemoryUse::Ring, BYTES).unwrap();
        fd
    }

    #[test]
    fn a_sealed_file_passes() {
        check(sealed().as_fd(), BYTES as u64).unwrap();
    }

    #[test]
    fn each_missing_seal_is_refused() {
        for missing in SEALS.iter() {
            let fd = create_memfd(MemoryUse::Ring, BYTES).unwrap();
            fcntl_add_seals(&fd, SEALS.difference(missing)).unwrap();
            let refused = check(fd.as_fd(), BYTES as u64).unwrap_err();
            assert!(
                matches!(refused, SegmentRefused::NotSealed { .. }),
                "{missing:?}: {refused}"
            );
        }
    }

    #[test]
    fn any_other_size_is_refused() {
        for announced in [0, BYTES as u64 - 1, BYTES as u64 + 1, u64::MAX] {
            let refused = check(sealed().as_fd(), announced).unwrap_err();
            assert!(
                matches!(refused, SegmentRefused::WrongSize { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_file_with_a_hole_is_refused() {
        let fd = memfd_create(c"holes", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, BYTES as u64).unwrap();
        fallocate(&fd, FallocateFlags::empty(), 0, BYTES as u64 / 2).unwrap();
        seal(&fd, MemoryUse::Ring, BYTES).unwrap();
        let refused = check(fd.as_fd(), BYTES as u64).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::NotBacked { .. }),
            "{refused}"
        );
        let backed = check_with_holes(fd.as_fd(), BYTES as u64).unwrap();
        assert_eq!(backed, BYTES as u64 / 2);
    }

    #[test]
    fn a_file_of_huge_pages_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // A kernel without huge pages makes no such file, so no peer passes one.
        let Ok(fd) = memfd_create(c"huge", flags) else {
            return;
        };
        ftruncate(&fd, HUGE_PAGE_BYTES).unwrap();
        fcntl_add_seals(&fd, SEALS).unwrap();
        let refused = check_with_holes(fd.as_fd(), HUGE_PAGE_BYTES).unwrap_err();
        assert!(refused.to_string().contains("tmpfs"), "{refused}");
    }

    #[test]
    fn a_file_with_memory_beyond_its_end_is_refused() {
        let fd = memfd_create(c"beyond", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, BYTES as u64).unwrap();
        fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 4 * HUGE_PAGE_BYTES).unwrap();
        seal(&fd, MemoryUse::Ring, BYTES).unwrap();
        let refused = check(fd.as_fd(), BYTES as u64).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::BackedBeyond { .. }),
            "{refused}"
        );
    }

    #[test]
    fn a_descriptor_of_no_memory_file_is_refused() {
        let directory = std::fs::File::open("/").unwrap();
        let (pipe, _other) = std::io::pipe().unwrap();
        for fd in [directory.as_fd(), pipe.as_fd()] {
            let refused = check(fd, BYTES as u64).unwrap_err();
            assert!(
                matches!(refused, SegmentRefused::NotAMemoryFile { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn after_the_seals_only_old_mappings_write() {
        let fd = create_memfd(MemoryUse::Ring, BYTES).unwrap();
        let old = Mapping::of_file(MemoryUse::Ring, fd.as_fd(), BYTES, Access::ReadWrite).unwrap();
        seal(&fd, MemoryUse::Ring, BYTES).unwrap();

        let new = Mapping::of_file(MemoryUse::Ring, fd.as_fd(), BYTES, Access::ReadWrite);
        assert_eq!(
            new.unwrap_err().source.kind(),
            io::ErrorKind::PermissionDenied
        );
        old.populate(MemoryUse::Ring, BYTES, Access::ReadWrite)
            .unwrap();
    }
}
