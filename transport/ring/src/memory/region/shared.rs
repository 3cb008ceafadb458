//! Regions whose pages other processes of this host map, to read messages where they lie.
//!
//! A region begins with private memory: a child of a fork gets a copy of it, it takes no descriptor,
//! and huge pages back it. When the first message goes to a peer that maps it, the bytes move to a
//! memory file, which takes the place of the private memory at the same addresses. The file stays for
//! further messages. When a message ends that its peer may still read, because the channel or session
//! has ended, the bytes move back, and the file is the peer's alone.
//!
//! Rules:
//!
//! 1. Pages are replaced only while there is a slice, so that nobody writes to them, and under the lock
//!    of `pages`. A reader finds the same bytes before and afterwards.
//!    If the kernel lacks memory in the middle of that, the process aborts.
//! 2. A device knows pages and not addresses. So whoever registers the region holds the same lock until
//!    the registration is attached, and all attachments go when pages are replaced. A device that is
//!    still sending then keeps its registration, and with it the former pages, whose bytes are the same.

use std::{
    mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::{Arc, MutexGuard},
};

use ibex_base::sync::lock;
use rustix::param::page_size;

use super::{Attachments, MappedBytes, RegionBytes, RegionSlice};
use crate::memory::{Mapping, MemoryError, MemoryUse};

/// What is known of a region's pages.
#[derive(Debug, Default)]
pub(super) enum Pages {
    /// They are private.
    #[default]
    Private,
    /// They are those of a file.
    File(Arc<RegionFile>),
    /// They are private, and the kernel has refused a file for them: it is not asked again.
    Refused,
}

/// A memory file that the pages of a region are those of.
#[derive(Debug)]
pub struct RegionFile {
    fd: OwnedFd,
    bytes: usize,
}

impl RegionFile {
    /// Returns the length of the file, which is that of the region in whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl AsFd for RegionFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl MappedBytes {
    /// Locks the pages, which stay in place as long as the result lives.
    pub fn hold_pages(&self) -> PagesHeld<'_> {
        PagesHeld(lock(&self.pages))
    }

    /// Returns whether the pages are those of a memory file, which peers may map.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(&*lock(&self.pages), Pages::File(_))
    }

    /// Returns the number of bytes that the pages have.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.memory.bytes().next_multiple_of(page_size())
    }

    /// Moves the bytes to the pages of `to`, which take the place of the present ones.
    ///
    /// # Safety
    ///
    /// There is a slice, and the lock of `pages` is held (rule 1).
    unsafe fn move_to(&self, to: Mapping) -> Result<(), MemoryError> {
        let (from, bytes) = (self.memory.base(), self.page_bytes());
        // SAFETY: both have that many bytes, and nobody else has those of `to`, nor writes to the others
        // (rule 1).
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.base().as_ptr(), self.length) };
        // SAFETY: the same bytes are in both, and nobody writes to them (rule 1).
        let replaced = unsafe { self.memory.replace(to) };
        replaced
            .map_err(|errno| MemoryError::new(MemoryUse::LargeMessage, bytes, "mremap", errno))?;
        // Dropped without the lock of the attachments, since devices take long.
        let stale = mem::take(&mut *self.attachments());
        drop::<Attachments>(stale);
        Ok(())
    }
}

/// The lock of a region's pages; see [`MappedBytes::hold_pages`].
#[derive(Debug)]
pub struct PagesHeld<'a>(#[allow(dead_code, reason = "held for its drop")] Guard<'a>);

type Guard<'a> = MutexGuard<'a, Pages>;

/// Returns the memory file that the slice's region lies in, and where the slice begins in it; `None` if
/// the region has no pages of its own, or an earlier call failed. The first call moves the region to such a file, which `make`
/// makes, with a mapping of it, of so many bytes. All of the region has memory then, and a child of a
/// fork does not have it.
///
/// # Errors
///
/// The error of `make`, or of the kernel; then the region is where it was.
pub fn share_region(
    slice: &RegionSlice,
    make: impl FnOnce(usize) -> Result<(Mapping, OwnedFd), MemoryError>,
) -> Result<Option<(Arc<RegionFile>, usize)>, MemoryError> {
    let mapped = match &*slice.bytes {
        RegionBytes::Mapped(mapped) if mapped.is_own => mapped,
        _ => return Ok(None),
    };
    let mut pages = lock(&mapped.pages);
    match &*pages {
        Pages::File(file) => return Ok(Some((file.clone(), slice.start))),
        Pages::Refused => return Ok(None),
        Pages::Private => {}
    }
    let bytes = mapped.page_bytes();
    let moved = make(bytes).and_then(|(memory, fd)| {
        // SAFETY: there is this slice, and the lock is held.
        unsafe { mapped.move_to(memory) }.map(|()| Arc::new(RegionFile { fd, bytes }))
    });
    match moved {
        Ok(file) => {
            *pages = Pages::File(file.clone());
            Ok(Some((file, slice.start)))
        }
        Err(error) => {
            *pages = Pages::Refused;
            Err(error)
        }
    }
}

/// Moves the region of a slice to private memory, if its pages are those of `file`, which is left to
/// those who map it. A region without other slices, which is dropped, stays there. This copies the region.
///
/// # Errors
///
/// The kernel's error; then the region is where it was.
pub fn keep_to_itself(slice: &RegionSlice, shared: &Arc<RegionFile>) -> Result<(), MemoryError> {
    let RegionBytes::Mapped(mapped) = &*slice.bytes else {
        return Ok(());
    };
    let is_last = Arc::strong_count(&slice.bytes) == 1;
    let mut pages = lock(&mapped.pages);
    let is_there = matches!(&*pages, Pages::File(file) if Arc::ptr_eq(file, shared));
    if is_last || !is_there {
        return Ok(());
    }
    let memory = Mapping::inherited_huge(MemoryUse::LargeMessage, mapped.page_bytes())?;
    // SAFETY: there is this slice, and the lock is held.
    unsafe { mapped.move_to(memory)? };
    *pages = Pages::Private;
    Ok(())
}
