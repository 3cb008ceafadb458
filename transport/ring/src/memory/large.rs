//! Memory for one message that is longer than its channel's ring.
//!
//! A buffer is allocated on the thread of the caller, never inside a turn, and serves one message
//! at a time. A buffer to send from is populated when it is taken. A buffer that a peer's message
//! comes into is populated as the message comes, and its pages are charged to the memory that peers
//! may make the node [hold](super::MemoryBudget). Faulting in fresh pages costs more than sending
//! what they hold (256 MiB are 65 536 faults), so a pool keeps the last few buffers for messages of
//! a similar size.

use std::mem::{self, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};

use ibex_base::{fork, sync::lock};
use rustix::io::Errno;

use super::{
    Access, Attachments, Mapping, MemoryBudget, MemoryClaim, MemoryError, MemoryUse,
    huge_pages::HUGE_PAGE_BYTES,
};

/// Free buffers that a pool keeps.
pub const DEFAULT_KEPT_BUFFERS: usize = 2;
/// Bytes that the free buffers of a pool add up to at most.
pub const DEFAULT_KEPT_BYTES: usize = 512 << 20;

/// The part of a [reserved](LargeBuffer::reserve) buffer whose pages come as they are touched.
pub(super) const TOUCHED_BYTES: usize = HUGE_PAGE_BYTES;

/// Page-aligned private memory.
#[derive(Debug)]
pub struct LargeBuffer {
    memory: Arc<Mapping>,
    /// The number of bytes that have pages already.
    populated: usize,
    attachments: Attachments,
    /// The buffer was free when surplus was taken last.
    was_seen: bool,
    /// The buffer's cost as a peer's message.
    claim: Option<MemoryClaim>,
}

impl LargeBuffer {
    /// Memory for `bytes`, populated. Blocks for as long as the kernel needs to
    /// zero the pages: call it outside turns.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn allocate(bytes: usize) -> Result<Self, MemoryError> {
        let mut buffer = Self::unpopulated(bytes)?;
        buffer.populate(bytes)?;
        Ok(buffer)
    }

    /// Addresses for `bytes`, without pages: they come as they are touched, or
    /// [populated](Mapping::populate_more). The first 2 MiB are in small pages, so
    /// that each costs what has come.
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses the range.
    pub fn reserve(bytes: usize) -> Result<Self, MemoryError> {
        let buffer = Self::unpopulated(bytes)?;
        buffer.memory.prefer_huge_pages_in(TOUCHED_BYTES, false);
        Ok(buffer)
    }

    fn unpopulated(bytes: usize) -> Result<Self, MemoryError> {
        let capacity = class_bytes(bytes)?;
        // The whole buffer will be written from end to end. Huge pages make that one fault per 2
        // MiB.
        let memory = Mapping::anonymous_huge(MemoryUse::LargeMessage, capacity)?;
        Ok(Self {
            memory: Arc::new(memory),
            populated: 0,
            attachments: Attachments::default(),
            was_seen: false,
            claim: None,
        })
    }

    /// Notes that the first `bytes` have pages.
    pub fn has_pages(&mut self, bytes: usize) {
        self.populated = self.populated.max(bytes);
    }

    /// Attaches the cost of a peer's message, which goes with the buffer until it is kept or
    /// unmapped.
    pub fn charge_to(&mut self, claim: MemoryClaim) {
        self.claim = Some(claim);
    }

    /// Returns the cost that was attached, to charge more.
    pub fn claim_mut(&mut self) -> Option<&mut MemoryClaim> {
        self.claim.as_mut()
    }

    /// Returns the address of the buffer.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Returns the buffer's capacity: at least what was requested.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.bytes()
    }

    /// The memory itself. An owner that keeps the memory beyond the buffer must not read or write
    /// it.
    #[must_use]
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Returns what fabrics have attached to the buffer.
    #[must_use]
    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// Returns the attachments to add to them; they stay with the buffer in its pool.
    pub fn attachments_mut(&mut self) -> &mut Attachments {
        &mut self.attachments
    }

    /// Returns the whole buffer, to write a message into.
    pub fn slot(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY:
        // 1. Valid: the mapping is `capacity` bytes of this value's own, private
        //    and writable, for as long as `self` lives; any byte is a valid
        //    `MaybeUninit<u8>`.
        // 2. Unique: `&mut self` for the life of the slice.
        unsafe { slice::from_raw_parts_mut(self.base().cast().as_ptr(), self.capacity()) }
    }

    /// Makes sure that the first `bytes` have pages. A class is up to half again
    /// as long as the message; pages that it does not reach are never touched.
    fn populate(&mut self, bytes: usize) -> Result<(), MemoryError> {
        if bytes > self.populated {
            self.memory
                .populate(MemoryUse::LargeMessage, bytes, Access::ReadWrite)?;
            self.populated = bytes;
        }
        Ok(())
    }
}

/// The stock of free buffers of one node; a clone is the same stock.
#[derive(Clone, Debug)]
pub struct LargePool {
    stock: Arc<Stock>,
}

impl LargePool {
    /// An empty pool that keeps up to `kept_buffers` free ones, of `kept_bytes` in all.
    #[must_use]
    pub fn new(kept_buffers: usize, kept_bytes: usize) -> Self {
        Self::within(None, kept_buffers, kept_bytes)
    }

    /// Creates a pool whose kept buffers count in a budget, of which they may take a quarter.
    #[must_use]
    pub fn within(
        budget: impl Into<Option<MemoryBudget>>,
        kept_buffers: usize,
        kept_bytes: usize,
    ) -> Self {
        let budget = budget.into();
        let share = budget.map_or(u64::MAX, |budget| budget.limit() / 4);
        Self {
            stock: Arc::new(Stock {
                free: Mutex::default(),
                kept_buffers,
                kept_bytes: kept_bytes.min(usize::try_from(share).unwrap_or(usize::MAX)),
                budget,
            }),
        }
    }

    /// Addresses for a message of `bytes` to come into; see [`LargeBuffer::reserve`].
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses the range.
    pub fn reserve(&self, bytes: usize) -> Result<LargeLease, MemoryError> {
        Ok(LargeLease {
            buffer: Some(LargeBuffer::reserve(bytes)?),
            stock: Arc::clone(&self.stock),
        })
    }

    /// Unmaps every free buffer. Returns whether there was one.
    pub fn trim(&self) -> bool {
        let free = mem::take(&mut *self.stock.lock());
        for buffer in &free {
            self.stock.keeps_no_more(buffer);
        }
        !free.is_empty()
    }

    /// A buffer for `bytes`, populated: a kept one of about that size, or a new
    /// one. Call it outside turns.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn take(&self, bytes: usize) -> Result<LargeLease, MemoryError> {
        let class = class_bytes(bytes)?;
        let mut buffer = match self.stock.take_kept(class) {
            Some(kept) => kept,
            None => LargeBuffer::allocate(bytes)?,
        };
        buffer.populate(bytes)?;
        Ok(LargeLease {
            buffer: Some(buffer),
            stock: Arc::clone(&self.stock),
        })
    }

    /// A kept buffer for `bytes` whose pages are there already: costs no system call, so
    /// it may be called in a turn.
    #[must_use]
    pub fn take_kept(&self, bytes: usize) -> Option<LargeLease> {
        let buffer = self.stock.take_kept(class_bytes(bytes).ok()?)?;
        let lease = LargeLease {
            buffer: Some(buffer),
            stock: Arc::clone(&self.stock),
        };
        (lease.populated >= bytes).then_some(lease)
    }

    /// Takes out the buffers that were not taken since the last call, to be unmapped.
    #[must_use]
    pub fn take_surplus(&self) -> Vec<LargeBuffer> {
        let mut free = self.stock.lock();
        let surplus: Vec<_> = free.extract_if(.., |buffer| buffer.was_seen).collect();
        for buffer in &mut *free {
            buffer.was_seen = true;
        }
        for buffer in &surplus {
            self.stock.keeps_no_more(buffer);
        }
        surplus
    }

    /// Returns how many free buffers are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.stock.lock().len()
    }
}

impl Default for LargePool {
    fn default() -> Self {
        Self::new(DEFAULT_KEPT_BUFFERS, DEFAULT_KEPT_BYTES)
    }
}

/// A buffer that goes back to its pool when it is dropped.
#[derive(Debug)]
pub struct LargeLease {
    /// Taken by `drop` and `withdraw` alone.
    buffer: Option<LargeBuffer>,
    stock: Arc<Stock>,
}

impl LargeLease {
    /// Gives the buffer back to its pool, as the drop does. Returns the buffers that the pool has no
    /// room for; dropping them unmaps them, which takes long.
    #[must_use]
    pub fn give_back(mut self) -> Vec<LargeBuffer> {
        let buffer = self.buffer.take().expect("only the end takes the buffer");
        self.stock.put(buffer)
    }

    /// Takes the buffer itself out of the lease, so that it returns to no pool. Dropping the buffer
    /// frees its attachments and then its memory, which takes long.
    #[must_use]
    pub fn withdraw(mut self) -> LargeBuffer {
        self.buffer.take().expect("only the end takes the buffer")
    }
}

impl Deref for LargeLease {
    type Target = LargeBuffer;

    fn deref(&self) -> &LargeBuffer {
        self.buffer.as_ref().expect("only the end takes the buffer")
    }
}

impl DerefMut for LargeLease {
    fn deref_mut(&mut self) -> &mut LargeBuffer {
        self.buffer.as_mut().expect("only the end takes the buffer")
    }
}

impl Drop for LargeLease {
    fn drop(&mut self) {
        if fork::is_child() {
            // In a forked child, the stock may be locked for ever.
            mem::forget(self.buffer.take());
            return;
        }
        if let Some(buffer) = self.buffer.take() {
            drop(self.stock.put(buffer));
        }
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let free = mem::take(&mut *self.lock());
        for buffer in &free {
            self.keeps_no_more(buffer);
        }
    }
}

#[derive(Debug)]
struct Stock {
    /// Free buffers, the most recently returned last.
    free: Mutex<Vec<LargeBuffer>>,
    kept_buffers: usize,
    kept_bytes: usize,
    /// The budget that free buffers count in.
    budget: Option<MemoryBudget>,
}

impl Stock {
    /// The smallest kept buffer that holds `class` and is not far too long for
    /// it: a short message must not occupy what the next long one needs.
    fn take_kept(&self, class: usize) -> Option<LargeBuffer> {
        let mut free = self.lock();
        let (index, _) = free
            .iter()
            .enumerate()
            .filter(|(_, kept)| (class..=2 * class).contains(&kept.capacity()))
            .min_by_key(|(_, kept)| kept.capacity())?;
        let buffer = free.remove(index);
        self.keeps_no_more(&buffer);
        Some(buffer)
    }

    /// A free buffer that was taken out of the list.
    fn keeps_no_more(&self, buffer: &LargeBuffer) {
        if let Some(budget) = &self.budget {
            budget.keep_no_more(buffer.populated as u64);
        }
    }

    /// Keeps the buffer. Returns the buffers for which there is no room: those that have waited
    /// longest, to be unmapped outside the lock.
    fn put(&self, mut buffer: LargeBuffer) -> Vec<LargeBuffer> {
        buffer.was_seen = false;
        buffer.claim = None;
        let mut unmapped = Vec::new();
        let mut free = self.lock();
        let may_keep = |budget: &MemoryBudget| budget.keep(buffer.populated as u64);
        if !self.budget.as_ref().is_none_or(may_keep) {
            return vec![buffer];
        }
        free.push(buffer);
        let mut bytes: usize = free.iter().map(LargeBuffer::capacity).sum();
        while free.len() > self.kept_buffers || bytes > self.kept_bytes {
            let oldest = free.remove(0);
            bytes -= oldest.capacity();
            self.keeps_no_more(&oldest);
            unmapped.push(oldest);
        }
        unmapped
    }

    /// The list is whole after every statement, so a panic elsewhere while it
    /// was locked does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Vec<LargeBuffer>> {
        lock(&self.free)
    }
}

/// The length that `bytes` are rounded up to: 2^n or 3 × 2^(n-1), at least
/// 64 KiB (the largest page of the architectures that we build for), so that
/// messages of similar lengths share buffers and at most a third lies idle.
///
/// # Errors
/// [`MemoryError`] if `bytes` is more than any address space has.
pub fn class_bytes(bytes: usize) -> Result<usize, MemoryError> {
    const SMALLEST: usize = 64 << 10;
    match bytes {
        0..=SMALLEST => Ok(SMALLEST),
        _ if bytes <= LARGEST_CLASS => {
            let above = bytes.next_power_of_two();
            let between = above / 4 * 3;
            let class = if bytes <= between { between } else { above };
            Ok(class.next_multiple_of(SMALLEST))
        }
        _ => Err(MemoryError::new(
            MemoryUse::LargeMessage,
            bytes,
            "mmap",
            Errno::NOMEM,
        )),
    }
}

/// The length of the largest buffer.
const LARGEST_CLASS: usize = 1 << 46;

/// The longest message whose buffer has at most `bytes`; 0 if there is none.
#[must_use]
pub fn longest_of_class(bytes: u64) -> u64 {
    // A process without any limit may have more than the largest buffer.
    let bytes = bytes.min(LARGEST_CLASS as u64);
    let fits = |class: &u64| {
        let class = usize::try_from(*class).ok();
        let buffer = class.and_then(|class| class_bytes(class).ok());
        buffer.is_some_and(|buffer| buffer as u64 <= bytes)
    };
    let power = 1 << bytes.max(1).ilog2();
    [bytes, power / 2 * 3, power, power / 4 * 3]
        .into_iter()
        .filter(|class| *class <= bytes)
        .find(fits)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
