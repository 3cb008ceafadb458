//! The memory of a ring: words with atomic access, and bytes between them.
//!
//! A ring of `capacity` bytes is addressed by offsets below twice its
//! capacity, and offsets that differ by the capacity name the same memory: it
//! is mapped twice, back to back, so that every record is contiguous.
//!
//! Access rules, for all threads and processes that share a ring:
//!
//! 1. A word that is a header, or where the next header will be, is accessed
//!    atomically. Only the producer stores, only with [`RingMemory::store`].
//! 2. Payload bytes are written by the producer alone, and only while they lie
//!    between its position and the last released record: they are its `&mut`.
//! 3. Payload bytes of a published record are read only, by the holder of the
//!    record, until its release.
//! 4. The producer reaches a word at the address at which it reaches the bytes
//!    around it. The same memory at another address is another object to the
//!    compiler, which may reorder accesses to the two.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use ibex_base::sync::Ordering;

/// Words of a ring.
pub trait RingMemory {
    /// Bytes of the ring, a power of two.
    fn capacity(&self) -> usize;

    /// Loads the word at `offset`, a multiple of 8 below twice the capacity.
    fn load(&self, offset: usize, order: Ordering) -> u64;

    /// Stores the word at `offset`, a multiple of 8 below twice the capacity.
    fn store(&self, offset: usize, value: u64, order: Ordering);
}

/// A ring in mapped memory, shared with another process or not.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    /// Bits of an offset that count: below twice the capacity, a multiple of 8.
    mask: usize,
}

impl Mapped {
    /// A ring of `capacity` bytes at `base`.
    ///
    /// # Panics
    ///
    /// If the capacity is not a power of two of at least 64 bytes or `base` is
    /// not aligned to 64.
    ///
    /// # Safety
    ///
    /// 1. `capacity` bytes are mapped at `base` and the same memory again
    ///    right behind them, readable, until the last copy of the value is
    ///    gone. A [`Consumer`](super::Consumer) needs no more; another process
    ///    may write to that memory at any time.
    /// 2. If a [`Producer`](super::Producer) is made over it: the mapping is writable, there is one
    ///    producer at a time, and no other code writes.
    /// 3. The caller of `Producer::refresh` names only records that no code in this process reads
    ///    any more. (Reads of another process are that process's responsibility.)
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, capacity: usize) -> Self {
        assert!(
            capacity.is_power_of_two() && capacity >= 64,
            "a ring of {capacity} bytes: the capacity must be a power of two, 64 or more"
        );
        assert!(
            base.addr().get().is_multiple_of(64),
            "a ring at {base:p}: it must be aligned to 64"
        );
        Self {
            base,
            mask: (2 * capacity - 1) & !7,
        }
    }

    /// The address of the byte at `offset`, from where `capacity` bytes are mapped if `offset` is at
    /// most the capacity.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.capacity());
        self.base.as_ptr().wrapping_add(offset)
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert_eq!(offset, offset & self.mask, "not the offset of a word");
        let word = self.base.as_ptr().wrapping_add(offset & self.mask);
        // SAFETY:
        // 1. Aligned: `base` is aligned to 64 and the mask clears the low bits.
        // 2. Valid: the masked offset is at most 8 bytes below twice the
        //    capacity, and `new` was promised both mappings for as long as
        //    `self` lives. A load needs no more than a readable page.
        // 3. Only atomic accesses meet here: rule 1 of this module.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

impl RingMemory for Mapped {
    #[inline]
    fn capacity(&self) -> usize {
        (self.mask + 8) / 2
    }

    #[inline]
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    #[inline]
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }
}

// SAFETY: `Mapped` is an address and a number. The rights to the memory there
// are settled by the promises made to `Mapped::new`, which name no thread.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`; its shared methods only load and store atomically.
unsafe impl Sync for Mapped {}
