//! A range of mapped memory, unmapped when it is dropped.
//!
//! Rules:
//! 1. `base..base + bytes` is mapped, by this value alone, from construction to drop; no other code
//!    unmaps or remaps any part of it. In a fork of the process the range may be a hole, or memory
//!    that the child has mapped there.
//! 2. A `Mapping` only says where the memory is. Its owner decides which threads may
//!    touch which bytes, and argues it there.

use std::mem::{self, ManuallyDrop};
use std::os::fd::BorrowedFd;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use ibex_base::fork;
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous,
    mremap_fixed, msync, munmap,
};
use rustix::param::page_size;

use super::{MemoryError, MemoryUse, huge_pages::HUGE_PAGE_BYTES};

/// The rights of the mapping's own process to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load and store.
    ReadWrite,
    /// Load; a store is SIGSEGV.
    ReadOnly,
}

/// A range of mapped memory.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range belongs to the process and not to a thread; dropping
// it (`munmap`) is legal from any thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out the address and the length, both of which never
// change (rule 1); what is done with the address is argued where it is done (rule 2).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory of this process, not yet backed by any page. A child does not
    /// have it: a device may write there.
    ///
    /// The memory is accounted (no MAP_NORESERVE), so that a range that the machine could never
    /// back is refused here, and not by the OOM killer, page by page.
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses the range.
    pub fn anonymous(what: MemoryUse, bytes: usize) -> Result<Self, MemoryError> {
        let mapping = Self::inherited(what, bytes)?;
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Like [`anonymous`](Self::anonymous), in huge pages as far as the system has some: for
    /// memory that is used whole.
    ///
    /// # Errors
    /// The errors of [`anonymous`](Self::anonymous).
    pub fn anonymous_huge(what: MemoryUse, bytes: usize) -> Result<Self, MemoryError> {
        let mapping = Self::inherited_huge(what, bytes)?;
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Like [`anonymous_huge`](Self::anonymous_huge), but a child process has a copy: for memory that
    /// may exist without a node.
    ///
    /// # Errors
    /// The errors of [`anonymous`](Self::anonymous).
    pub fn inherited_huge(what: MemoryUse, bytes: usize) -> Result<Self, MemoryError> {
        let mapping = match bytes >= HUGE_PAGE_BYTES {
            true => Self::inherited(what, bytes + HUGE_PAGE_BYTES)?.aligned_part(bytes),
            false => Self::inherited(what, bytes)?,
        };
        mapping.prefer_huge_pages(true);
        Ok(mapping)
    }

    /// Keeps `bytes` of the range from where a huge page may begin, and unmaps the rest before and
    /// behind. The range is longer by one huge page.
    fn aligned_part(self, bytes: usize) -> Self {
        let whole = ManuallyDrop::new(self);
        let before = whole.base.align_offset(HUGE_PAGE_BYTES);
        // Memory is mapped and unmapped in whole pages.
        let bytes = bytes.next_multiple_of(page_size());
        let behind = whole.bytes.next_multiple_of(page_size()) - before - bytes;
        // SAFETY: `before` is less than a huge page, by which the range is longer.
        let base = unsafe { whole.base.add(before) };
        // SAFETY: as above.
        let end = unsafe { base.add(bytes) };
        for (start, length) in [(whole.base, before), (end, behind)] {
            // SAFETY: a part of the range, which is ours (rule 1), and no other code knows it yet.
            let unmapped = length == 0 || unsafe { munmap(start.as_ptr().cast(), length) }.is_ok();
            debug_assert!(unmapped, "munmap of our own range");
        }
        Self { base, bytes }
    }

    /// Like [`anonymous`](Self::anonymous), but a child process has a copy: for memory that drops
    /// touch.
    ///
    /// # Errors
    /// The errors of [`anonymous`](Self::anonymous).
    pub fn inherited(what: MemoryUse, bytes: usize) -> Result<Self, MemoryError> {
        // SAFETY: a null hint without MAP_FIXED takes a range that is not in use.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                Access::ReadWrite.protection(),
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| MemoryError::new(what, bytes, "mmap", errno))?;
        Ok(Self {
            base: non_null(base),
            bytes,
        })
    }

    /// The first `bytes` of a memory file, shared with all that map it, with
    /// its page tables filled. A child does not have it.
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses the range or its pages.
    pub fn of_file(
        what: MemoryUse,
        fd: BorrowedFd<'_>,
        bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        Self::of_file_from(what, fd, 0, bytes, access)
    }

    /// Like [`of_file`](Self::of_file), for `bytes` of a file from `start`, which is a multiple of a page.
    pub(super) fn of_file_from(
        what: MemoryUse,
        fd: BorrowedFd<'_>,
        start: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let mapping = Self::of_file_for_children(what, fd, start, bytes, access)?;
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Bytes of a file, as [`of_file_from`](Self::of_file_from) maps them. A child has them too.
    pub(super) fn of_file_for_children(
        what: MemoryUse,
        fd: BorrowedFd<'_>,
        start: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        // SAFETY: a null hint without MAP_FIXED takes a range that is not in use.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                access.protection(),
                MapFlags::SHARED,
                fd,
                start,
            )
        }
        .map_err(|errno| MemoryError::new(what, bytes, "mmap", errno))?;
        let mapping = Self {
            base: non_null(base),
            bytes,
        };
        mapping.populate(what, bytes, access)?;
        Ok(mapping)
    }

    /// Reserves `bytes` of addresses; touching them is SIGSEGV until something
    /// is mapped over them with [`Mapping::place`].
    pub(super) fn reserve(what: MemoryUse, bytes: usize) -> Result<Self, MemoryError> {
        // SAFETY: a null hint without MAP_FIXED takes a range that is not in use.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|errno| MemoryError::new(what, bytes, "mmap", errno))?;
        Ok(Self {
            base: non_null(base),
            bytes,
        })
    }

    /// Maps the first `bytes` of a file over part of this range.
    pub(super) fn place(
        &mut self,
        offset: usize,
        fd: BorrowedFd<'_>,
        bytes: usize,
        access: Access,
    ) -> Result<(), Errno> {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "the window leaves its range"
        );
        // SAFETY:
        // 1. In bounds: the assertion above; `base + offset` is inside the range.
        // 2. MAP_FIXED unmaps what is there, which is this range (rule 1), and `&mut self` says
        //    that no code holds an address inside it yet.
        unsafe {
            mmap(
                self.base.as_ptr().add(offset).cast(),
                bytes,
                access.protection(),
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                0,
            )
        }?;
        Ok(())
    }

    /// Maps new memory over the first half of this range, and the same memory over the second half.
    pub(super) fn place_twice(&mut self) -> Result<(), Errno> {
        let half = self.bytes / 2;
        let first = self.base.as_ptr();
        // SAFETY: as in `place`. For a shared mapping, mremap(2) of no bytes makes a second mapping
        // of the same pages, and leaves the first one as it is.
        unsafe {
            mmap_anonymous(
                first.cast(),
                half,
                Access::ReadWrite.protection(),
                MapFlags::SHARED | MapFlags::FIXED,
            )?;
            let second = first.add(half).cast();
            mremap_fixed(first.cast(), 0, half, MremapFlags::MAYMOVE, second)?;
        }
        Ok(())
    }

    /// Leaves a hole here in a fork of this process. So a child cannot write what a peer reads, and
    /// a page that a device writes to stays ours. Before Linux 5.12 the kernel gave the child the
    /// page that the device has, and this process a copy at the next store.
    pub fn keep_from_children(&self) {
        let start = self.base.as_ptr().addr();
        // SAFETY: the range is mapped (rule 1). A child does not touch it (`fork`, rule 3).
        unsafe { fork::keep_from_children(start..start + self.bytes) };
    }

    /// Fills the page tables of the first `bytes`, so that touching them faults no more.
    ///
    /// Before Linux 5.14 the kernel cannot do this (EINVAL) and pages are faulted in one by one as
    /// they are touched. This costs time but not safety: there, memory files are backed in full
    /// before they are mapped.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn populate(
        &self,
        what: MemoryUse,
        bytes: usize,
        access: Access,
    ) -> Result<(), MemoryError> {
        assert!(bytes <= self.bytes, "cannot populate more than is mapped");
        let advice = match access {
            Access::ReadWrite => Advice::LinuxPopulateWrite,
            Access::ReadOnly => Advice::LinuxPopulateRead,
        };
        // SAFETY: populating changes page tables and no byte, and the range is
        // mapped (rule 1).
        match retry_on_intr(|| unsafe { madvise(self.base.as_ptr().cast(), bytes, advice) }) {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(MemoryError::new(what, bytes, "madvise", errno)),
        }
    }

    /// Like [`populate`](Self::populate), for the bytes from `from` to `to`, which are about to be
    /// written.
    ///
    /// # Errors
    /// The errors of [`populate`](Self::populate).
    pub fn populate_more(
        &self,
        what: MemoryUse,
        from: usize,
        to: usize,
    ) -> Result<(), MemoryError> {
        assert!(
            from <= to && to <= self.bytes,
            "cannot populate more than is mapped"
        );
        let start = from / page_size() * page_size();
        let advice = Advice::LinuxPopulateWrite;
        // SAFETY: populating changes page tables and no byte, and the range is
        // mapped (rule 1).
        let populated = retry_on_intr(|| unsafe {
            madvise(self.base.as_ptr().add(start).cast(), to - start, advice)
        });
        match populated {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(MemoryError::new(what, to - from, "madvise", errno)),
        }
    }

    /// Replaces the mapped memory by zeros that cannot be written.
    ///
    /// # Safety
    /// No code writes to the range from now on, and a reader, during the call or afterwards,
    /// expects the old bytes or zeros.
    pub(super) unsafe fn vacate(&self) -> Result<(), Errno> {
        // SAFETY: MAP_FIXED unmaps what is there, which is this range (rule 1), and the caller
        // vouches for the readers.
        unsafe {
            mmap_anonymous(
                self.base.as_ptr().cast(),
                self.bytes,
                Access::ReadOnly.protection(),
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        }?;
        Ok(())
    }

    /// Puts other memory in the place of as many pages of this range, from `start`, at the same addresses.
    /// Code that reads there meanwhile waits for a moment, and then reads the other memory. If the kernel
    /// refuses, nothing has changed.
    ///
    /// The process aborts if the kernel has unmapped these pages by then, and lacks memory to go on: other
    /// threads may be reading here, and must find neither a hole nor zeros. A mapping that another thread
    /// makes in the hole, between the kernel's refusal and the check, hides it.
    ///
    /// # Safety
    /// Readers of these pages expect the bytes of `other`, and no code writes to either meanwhile.
    pub(super) unsafe fn replace(&self, start: usize, other: Mapping) -> Result<(), Errno> {
        let bytes = other.bytes.next_multiple_of(page_size());
        let ours = self.bytes.next_multiple_of(page_size());
        assert!(
            start.is_multiple_of(page_size()) && start <= ours && bytes <= ours - start,
            "memory is replaced in whole pages"
        );
        // SAFETY: inside the range, by the assertion.
        let place = unsafe { self.base.add(start) };
        // SAFETY: MREMAP_FIXED unmaps what is there, which is a part of this range (rule 1), and the
        // caller vouches for its readers. The other range is ours too, and no code knows it after this.
        let moved = unsafe {
            let (from, to) = (other.base.as_ptr().cast(), place.as_ptr().cast());
            mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to)
        };
        match moved {
            Ok(_) => {
                mem::forget(other);
                Ok(())
            }
            Err(errno) if is_mapped(place, bytes) => Err(errno),
            Err(errno) => {
                tracing::error!(%errno, bytes, "mremap: memory that is in use is gone, aborting");
                process::abort()
            }
        }
    }

    /// Gives the pages of anonymous memory back: the memory reads as zero again, and costs nothing
    /// until it is touched.
    ///
    /// # Safety
    /// No code reads or writes the range during the call, or relies on its old content.
    pub unsafe fn discard(&self) {
        // SAFETY: the range is mapped (rule 1), and the caller promises that no code uses its
        // content.
        let discarded =
            unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxDontNeed) };
        debug_assert!(discarded.is_ok(), "madvise of our own range: {discarded:?}");
    }

    /// Advises the kernel whether to use huge pages in the whole range. This is only a hint: a
    /// kernel without huge pages refuses it, and nothing else changes.
    pub fn prefer_huge_pages(&self, huge: bool) {
        self.prefer_huge_pages_in(self.bytes, huge);
    }

    /// Like [`prefer_huge_pages`](Self::prefer_huge_pages), for the first `bytes`.
    pub(super) fn prefer_huge_pages_in(&self, bytes: usize, huge: bool) {
        let bytes = bytes.min(self.bytes);
        let advice = if huge {
            Advice::LinuxHugepage
        } else {
            Advice::LinuxNoHugepage
        };
        // SAFETY: the advice changes the size of pages and no byte, and the range
        // is mapped (rule 1).
        let _ = unsafe { madvise(self.base.as_ptr().cast(), bytes, advice) };
    }

    /// Returns the page-aligned beginning of the range.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length of the range.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if fork::is_child() {
            // In a forked child, another mapping may be at this address by now.
            return;
        }
        // SAFETY: the range is ours (rule 1), and the code that handed its address on
        // keeps this value alive for as long as the address is used (rule 2).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range: {unmapped:?}");
    }
}

impl Access {
    fn protection(self) -> ProtFlags {
        match self {
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Self::ReadOnly => ProtFlags::READ,
        }
    }
}

/// Returns whether the kernel can populate memory: Linux 5.14 and later can.
pub(super) fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    // SAFETY: no memory is advised; madvise(2) only tells whether it knows the advice.
    let asked = || unsafe { madvise(ptr::null_mut(), 0, Advice::LinuxPopulateWrite) };
    *CAN.get_or_init(|| asked().is_ok())
}

/// Returns whether all of a range of this process is mapped: a failed mremap(2) may have left a hole.
fn is_mapped(base: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: msync(2) with MS_ASYNC changes nothing; a hole is ENOMEM.
    unsafe { msync(base.as_ptr().cast(), bytes, MsyncFlags::ASYNC) }.is_ok()
}

/// A successful mmap without MAP_FIXED never gives address 0 (`vm.mmap_min_addr`
/// aside, a null hint means "anywhere else").
fn non_null(base: *mut core::ffi::c_void) -> NonNull<u8> {
    NonNull::new(base.cast()).expect("mmap chose address 0")
}

#[cfg(test)]
mod tests;
