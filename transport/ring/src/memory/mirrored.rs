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

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::io::Errno;

use super::{Access, Mapping, MemoryError, MemoryUse, create_memfd};

/// A ring's memory: `2 * capacity` addresses over `capacity` bytes.
#[derive(Debug)]
pub struct MirroredMapping {
    /// Both windows, in one range, so that one `munmap` takes both.
    windows: Mapping,
    capacity: usize,
}

impl MirroredMapping {
    /// Creates a ring that only this process maps. The memory file is closed again, and the mapping
    /// alone keeps it.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn create_private(capacity: usize) -> Result<Self, MemoryError> {
        check_capacity(capacity)?;
        let fd = create_memfd(MemoryUse::Ring, capacity)?;
        Self::map(fd.as_fd(), capacity, Access::ReadWrite)
    }

    /// Maps both windows of a memory file of `capacity` bytes, with their page
    /// tables filled. `capacity` is a power of two and at least a page.
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
        windows.keep_from_children();
        windows.populate(MemoryUse::Ring, 2 * capacity, access)?;
        Ok(Self { windows, capacity })
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

    #[test]
    fn a_write_over_the_seam_shows_at_the_beginning() {
        let ring = MirroredMapping::create_private(CAPACITY).unwrap();
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

    #[test]
    fn both_windows_are_resident_from_the_start() {
        let ring = MirroredMapping::create_private(CAPACITY).unwrap();
        let pages = 2 * CAPACITY / rustix::param::page_size();
        assert_eq!(probe::resident_pages(ring.base(), 2 * CAPACITY), pages);
    }

    #[test]
    fn nothing_is_left_after_drop() {
        let fd = create_memfd(MemoryUse::Ring, CAPACITY).unwrap();
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
