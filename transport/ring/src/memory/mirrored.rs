//! Memory mapped twice back to back, so that a ring has no seam.
//!
//! The byte at `offset` and the byte at `offset + capacity` are the same byte.
//! A record that crosses the end of the ring continues in the second window,
//! which is the ring's beginning. So every record is one contiguous range,
//! without a copy.
//!
//! The compiler does not know that two addresses are one byte. Code that reaches a
//! byte through both windows has an ordering in between, as a ring does that
//! publishes with Release and takes with Acquire; plain accesses alone may be
//! reordered.
//!
//! A new ring has no memory yet: its producer populates it, in steps ([`Backing`](super::Backing)).
//! Only the first window is populated. The second one shows the same pages, and the kernel enters
//! each in its page table when a record over the end first touches it.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::{Access, Mapping, MemoryError, MemoryUse, create_ring_memfd, mapping::can_populate};

/// A ring's memory: `2 * capacity` addresses over `capacity` bytes.
#[derive(Debug)]
pub struct MirroredMapping {
    /// Both windows, in one range, so that one `munmap` takes both.
    windows: Mapping,
    capacity: usize,
    /// All of the ring has been populated, or the kernel cannot populate.
    is_populated: AtomicBool,
}

impl MirroredMapping {
    /// Creates a ring that only this process maps. The memory file is closed again, and the mapping
    /// alone keeps it. Where the kernel or a sandbox denies memory files, there is none.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn create_private(capacity: usize) -> Result<Self, MemoryError> {
        check_capacity(capacity)?;
        match create_ring_memfd(capacity) {
            Ok(fd) => Self::map(fd.as_fd(), capacity, Access::ReadWrite),
            Err(error) if error.is_denied() => Self::without_file(capacity),
            Err(error) => Err(error),
        }
    }

    /// Creates a ring of memory without a descriptor. On a kernel before Linux 5.14, which cannot
    /// populate, memory backs each page when it is touched.
    fn without_file(capacity: usize) -> Result<Self, MemoryError> {
        let mut windows = Mapping::reserve(MemoryUse::Ring, 2 * capacity)?;
        windows
            .place_twice()
            .map_err(|errno| MemoryError::new(MemoryUse::Ring, capacity, "mremap", errno))?;
        Ok(Self::of(windows, capacity))
    }

    /// Maps both windows of a memory file of `capacity` bytes, a power of two and at least a page.
    ///
    /// # Errors
    /// [`MemoryError`] if `capacity` is neither, or there is not enough memory.
    pub fn map(fd: BorrowedFd<'_>, capacity: usize, access: Access) -> Result<Self, MemoryError> {
        check_capacity(capacity)?;
        let refused = |errno| MemoryError::new(MemoryUse::Ring, capacity, "mmap", errno);

        // Reserving first keeps the addresses of the second window ours while
        // the first is mapped: another thread's mmap cannot land there.
        let mut windows = Mapping::reserve(MemoryUse::Ring, 2 * capacity)?;
        windows.place(0, fd, capacity, access).map_err(refused)?;
        windows
            .place(capacity, fd, capacity, access)
            .map_err(refused)?;
        Ok(Self::of(windows, capacity))
    }

    fn of(windows: Mapping, capacity: usize) -> Self {
        windows.keep_from_children();
        Self {
            windows,
            capacity,
            is_populated: AtomicBool::new(!can_populate()),
        }
    }

    /// Populates `bytes` of the ring from `offset` on, at most one lap: what lies beyond the ring's
    /// end is its beginning.
    pub(super) fn populate(&self, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let first = bytes.min(self.capacity - offset);
        for (from, to) in [(offset, offset + first), (0, bytes - first)] {
            if from < to {
                self.windows.populate_more(MemoryUse::Ring, from, to)?;
            }
        }
        Ok(())
    }

    /// Returns whether touching the ring needs no further populating.
    pub(super) fn is_populated(&self) -> bool {
        self.is_populated.load(Ordering::Relaxed)
    }

    /// Notes that all of the ring has been populated.
    pub(super) fn note_populated(&self) {
        self.is_populated.store(true, Ordering::Relaxed);
    }

    /// Frees the memory in place: from now on every byte reads as zero, and may not be written. The
    /// addresses stay reserved.
    ///
    /// A thread that reads during the call finds the old bytes or zeros: the kernel replaces the
    /// old mapping under the lock that page faults take.
    ///
    /// # Safety
    ///
    /// No code writes from now on, and a reader expects the old bytes or zeros.
    pub unsafe fn vacate(&self) -> Result<(), MemoryError> {
        // SAFETY: the caller promises what `Mapping::vacate` requires.
        let vacated = unsafe { self.windows.vacate() };
        vacated.map_err(|errno| MemoryError::new(MemoryUse::Ring, self.capacity, "mmap", errno))
    }

    /// Returns whether a ring can have this capacity: its offsets are taken by a mask, and its
    /// windows begin at pages.
    #[must_use]
    pub fn is_possible(capacity: usize) -> bool {
        capacity.is_power_of_two()
            && capacity >= rustix::param::page_size()
            && capacity <= isize::MAX as usize / 2
    }

    /// The first byte of the first window.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.windows.base()
    }

    /// Length of one window.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

fn check_capacity(capacity: usize) -> Result<(), MemoryError> {
    if MirroredMapping::is_possible(capacity) {
        Ok(())
    } else {
        Err(MemoryError::new(
            MemoryUse::Ring,
            capacity,
            "mmap",
            Errno::INVAL,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe;
    use super::*;
    use std::sync::atomic::{Ordering::SeqCst, fence};

    const CAPACITY: usize = 64 << 10;

    /// The two ways to a private ring.
    const CREATE: [fn(usize) -> Result<MirroredMapping, MemoryError>; 2] = [
        MirroredMapping::create_private,
        MirroredMapping::without_file,
    ];

    #[test]
    fn a_write_over_the_seam_shows_at_the_beginning() {
        for create in CREATE {
            let ring = create(CAPACITY).unwrap();
            let base = ring.base().as_ptr();
            let text = *b"over the seam";
            // SAFETY: all ranges lie inside the two windows; one thread has the ring,
            // and no reference into it exists.
            unsafe {
                base.add(CAPACITY - 5).copy_from(text.as_ptr(), text.len());
                fence(SeqCst);
                let mut head = [0; 8];
                base.copy_to(head.as_mut_ptr(), head.len());
                assert_eq!(&head, b"the seam");
                base.add(3).write(b'!');
                fence(SeqCst);
                assert_eq!(base.add(CAPACITY + 3).read(), b'!');
            }
        }
    }

    #[test]
    fn only_what_is_populated_is_resident() {
        let page = rustix::param::page_size();
        for create in CREATE {
            let ring = create(CAPACITY).unwrap();
            assert_eq!(probe::resident_pages(ring.base(), 2 * CAPACITY), 0);
            ring.populate(CAPACITY - page, 2 * page).unwrap();
            assert_eq!(probe::resident_pages(ring.base(), 2 * CAPACITY), 2);
            ring.populate(0, CAPACITY).unwrap();
            let resident = probe::resident_pages(ring.base(), 2 * CAPACITY);
            assert_eq!(resident, CAPACITY / page);
        }
    }

    #[test]
    fn nothing_is_left_after_drop() {
        let fd = create_ring_memfd(CAPACITY).unwrap();
        let file = probe::inode(&fd);
        let ring = MirroredMapping::map(fd.as_fd(), CAPACITY, Access::ReadWrite).unwrap();
        assert_eq!(probe::mappings_of(file), 2);
        drop(ring);
        assert_eq!(probe::mappings_of(file), 0);
    }

    #[test]
    fn a_capacity_that_cannot_be_masked_is_refused() {
        for capacity in [0, 1, 100, CAPACITY + 1, 3 * CAPACITY, usize::MAX, 1 << 63] {
            let error = MirroredMapping::create_private(capacity).unwrap_err();
            assert_eq!(
                error.source.raw_os_error(),
                Some(Errno::INVAL.raw_os_error())
            );
        }
    }
}
