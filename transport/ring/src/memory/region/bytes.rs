//! The memory that a region's bytes lie in, and ranges of it.

use std::{
    mem::ManuallyDrop,
    ops::{Bound, Deref, RangeBounds},
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, MutexGuard},
};

use ibex_base::{call_foreign, sync::lock};

use super::{RegionSlice, shared::RegionPages};
use crate::memory::{Attachments, Mapping};

pub(super) enum RegionBytes {
    Heap(Vec<u8>),
    Mapped(MappedBytes),
    Owned(OwnedBytes),
}

/// Bytes of mapped memory, which a fabric may know.
#[derive(Debug)]
pub struct MappedBytes {
    attachments: Mutex<Attachments>,
    pub(super) memory: Arc<Mapping>,
    /// Where the bytes begin in the memory: elsewhere than at 0 only in a file.
    start: usize,
    pub(super) length: usize,
    /// False if the bytes are those of a file that the program has mapped.
    pub(super) is_own: bool,
    /// The memory file that the pages are those of, since peers map them; see `shared`.
    pub(super) pages: Mutex<RegionPages>,
}

impl MappedBytes {
    /// Makes the bytes of pages of the region's own.
    pub(super) fn own(memory: Mapping, length: usize) -> Self {
        Self::new(memory, 0, length, true)
    }

    /// Makes `length` bytes of a mapped file, from `start` of the mapping.
    pub(super) fn of_file(memory: Mapping, start: usize, length: usize) -> Self {
        Self::new(memory, start, length, false)
    }

    fn new(memory: Mapping, start: usize, length: usize, is_own: bool) -> Self {
        assert!(
            start <= memory.bytes() && length <= memory.bytes() - start,
            "the bytes are inside the mapping"
        );
        Self {
            attachments: Mutex::default(),
            memory: Arc::new(memory),
            start,
            length,
            is_own,
            pages: Mutex::default(),
        }
    }

    /// Returns the memory itself, which nobody writes to while there is a slice of it.
    #[must_use]
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Returns whether the pages are this process's own, mapped for writing too, and not those of a
    /// file that the program has mapped.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Locks what fabrics have attached to the memory. It goes when the memory does, or its pages do.
    pub fn attachments(&self) -> MutexGuard<'_, Attachments> {
        lock(&self.attachments)
    }
}

/// Bytes of a value that the program has handed over.
pub(super) struct OwnedBytes {
    /// What `owner` has returned, once.
    bytes: NonNull<[u8]>,
    /// In an `Arc`, since moving a `Box` would say that nothing else points into it.
    owner: ManuallyDrop<Arc<dyn Send + Sync>>,
}

// SAFETY: the bytes are only read, and are borrowed from the owner, which is Send and Sync.
unsafe impl Send for OwnedBytes {}
// SAFETY: as above.
unsafe impl Sync for OwnedBytes {}

impl OwnedBytes {
    pub(super) fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let owner = Arc::new(owner);
        let bytes = NonNull::from((*owner).as_ref());
        Self {
            bytes,
            owner: ManuallyDrop::new(owner),
        }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        // SAFETY: taken here alone, and `self` is not used after this.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        // The thread may be one that serves others as well.
        if let Err(panic) = call_foreign(|| drop(owner)) {
            tracing::error!(panic, "the drop of a region's owner panicked");
        }
    }
}

impl Deref for RegionBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            // SAFETY:
            // 1. Valid: `start + length` is at most the memory's length (`MappedBytes::new`), its bytes
            //    are zeros of the kernel's or those of the file, and it lives as long as `self`. A child of a fork has it too, unless a
            //    node has registered or shared it: then the caller of `fork` vouches for the child (`Node`), and
            //    the caller of `Region::map` for a file.
            // 2. Unchanged: those of our own are written through `get_mut`, which borrows them
            //    exclusively, and by a message that arrives while they are a `ProvidedRegion`, of
            //    which there is no reference. Those of a file are mapped for reading alone, and the
            //    caller of `Region::map` vouches for the file.
            Self::Mapped(mapped) => unsafe {
                let first = mapped.memory.base().add(mapped.start);
                slice::from_raw_parts(first.as_ptr(), mapped.length)
            },
            // SAFETY: `as_ref` has borrowed these bytes from the owner. The borrow is not over: the
            // owner is neither moved nor used before it is dropped, behind `self`.
            Self::Owned(owned) => unsafe { owned.bytes.as_ref() },
        }
    }
}

/// Returns the mapped memory that `slice` is a part of, if it is some, and where the slice begins in
/// it.
#[must_use]
pub fn mapped_bytes(slice: &RegionSlice) -> Option<(&MappedBytes, usize)> {
    match &*slice.bytes {
        RegionBytes::Heap(_) | RegionBytes::Owned(_) => None,
        RegionBytes::Mapped(mapped) => Some((mapped, mapped.start + slice.start)),
    }
}

/// Returns the beginning and the end of a range of `length` bytes.
pub(super) fn bounds(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let one = |bound: Bound<&usize>| bound.map(|&at| at as u64);
    let range = (one(range.start_bound()), one(range.end_bound()));
    let (start, end) = ends(range, length as u64);
    assert!(
        start <= end && end <= length as u64,
        "the range {start}..{end} is not inside {length} bytes"
    );
    (start as usize, end as usize)
}

/// Returns the beginning and the end of any range, of which `length` is the end if it has none.
pub(super) fn ends(range: impl RangeBounds<u64>, length: u64) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    (start, end)
}
