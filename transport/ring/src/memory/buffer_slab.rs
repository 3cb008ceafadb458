//! Memory that a device receives into: buffers of one length, side by side.
//!
//! A buffer is with the engine (free, or posted to the device) or leased: to a frame whose messages
//! are read in place. The lease ends on the thread that released the last of them, and the buffer
//! returns over [`Returns`].
//!
//! Rules:
//! 1. The owner of a buffer has one reference count of the slab, so the slab lives as long as any
//!    buffer is out. The count travels with the buffer and is never touched on the way: a frame
//!    costs no locked instruction when it arrives and one when it goes.
//! 2. A leased buffer is read only. The device writes only to posted buffers, and only the engine
//!    that has a buffer posts it.

use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Mapping, MemoryError, MemoryUse, huge_pages::huge_bytes};
use crate::Returns;

/// Receive buffers of the same length, one behind the other.
#[derive(Debug)]
pub struct BufferSlab {
    memory: Mapping,
    buffer_bytes: usize,
    returns: Returns,
}

impl BufferSlab {
    /// Memory for `buffers` of `buffer_bytes` each, a multiple of 64, so that each begins
    /// at a cache line. Not populated: registering it does that.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn allocate(buffers: u32, buffer_bytes: usize) -> Result<Arc<Self>, MemoryError> {
        debug_assert!(buffer_bytes.is_multiple_of(64));
        let bytes = buffers as usize * buffer_bytes;
        // All of the memory is pinned, so huge pages cost no more, and save the device and the CPU
        // translations.
        let memory = Mapping::anonymous_huge(MemoryUse::ReceiveBuffers, bytes)?;
        Ok(Arc::new(Self {
            memory,
            buffer_bytes,
            returns: Returns::new(buffers),
        }))
    }

    /// The first byte of the first buffer.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Returns the length of all buffers together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns how much of the slab is in huge pages, if the kernel reports it.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<usize> {
        let start = self.base().addr().get();
        huge_bytes(&(start..start + self.bytes()))
    }

    /// Returns the length of a buffer.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Leases a buffer that the engine has; `has` is its reference count (rule 1).
    fn lease(has: Arc<Self>, index: u32) -> BufferLease {
        BufferLease {
            slab: ManuallyDrop::new(has),
            index,
        }
    }
}

/// A leased buffer, until it is dropped.
#[derive(Debug)]
pub struct BufferLease {
    /// The count that travels with the buffer; left alone when the buffer goes back.
    slab: ManuallyDrop<Arc<BufferSlab>>,
    index: u32,
}

impl BufferLease {
    /// Returns the buffer's number in the slab.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the buffer's length.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slab.buffer_bytes
    }

    /// Returns the address of the buffer's first byte.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        let offset = self.index as usize * self.slab.buffer_bytes;
        // SAFETY: indices are below the number of buffers that the slab was made for.
        unsafe { self.slab.base().add(offset) }
    }
}

impl Drop for BufferLease {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: no code touches the lease after its drop.
        let slab = unsafe { ManuallyDrop::take(&mut self.slab) };
        give_back(slab, self.index);
    }
}

/// Ends a lease. Takes it by value: a lease that is handed on stays in registers as long as no code
/// needs its address, not even to drop it after a panic.
#[inline(never)]
fn give_back(slab: Arc<BufferSlab>, index: u32) {
    if slab.returns.give(index) {
        // The reference count travels with the buffer.
        mem::forget(slab);
    }
}

/// The engine's end: the buffers that are free.
#[derive(Debug)]
pub struct FreeBuffers {
    slab: Arc<BufferSlab>,
    free: Vec<OwnedBuffer>,
}

/// A buffer that the engine has, with its count (rule 1).
#[derive(Debug)]
pub struct OwnedBuffer {
    slab: Arc<BufferSlab>,
    index: u32,
}

impl OwnedBuffer {
    /// Returns the buffer's number in the slab.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Hands the buffer out as a lease.
    #[inline]
    #[must_use]
    pub fn lease(self) -> BufferLease {
        BufferSlab::lease(self.slab, self.index)
    }
}

impl FreeBuffers {
    /// Takes all buffers of a new slab.
    #[must_use]
    pub fn all_of(slab: &Arc<BufferSlab>) -> Self {
        let buffers = (slab.bytes() / slab.buffer_bytes) as u32;
        // The first buffer is used first, and again while none is held, so that its lines stay
        // warm.
        let owned = (0..buffers).rev().map(|index| OwnedBuffer {
            slab: slab.clone(),
            index,
        });
        Self {
            slab: slab.clone(),
            free: owned.collect(),
        }
    }

    /// A free buffer, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<OwnedBuffer> {
        if self.free.is_empty() {
            self.collect();
        }
        self.free.pop()
    }

    /// Takes back a buffer that was taken and not handed out.
    #[inline]
    pub fn put_back(&mut self, owned: OwnedBuffer) {
        self.free.push(owned);
    }

    /// Returns whether this many buffers are free, including those that have come back.
    #[inline]
    pub fn has(&mut self, count: usize) -> bool {
        self.free.len() >= count || {
            self.collect();
            self.free.len() >= count
        }
    }

    /// Takes in the buffers that have come back. They are used next, because their lines are warm.
    #[inline(never)]
    pub fn collect(&mut self) {
        let (slab, free) = (&self.slab, &mut self.free);
        slab.returns.take(|index| free.push(returned(slab, index)));
    }
}

impl Drop for FreeBuffers {
    fn drop(&mut self) {
        let slab = &self.slab;
        slab.returns.close(|index| drop(returned(slab, index)));
    }
}

/// Takes over a buffer that came back, and the count that came with it.
fn returned(slab: &Arc<BufferSlab>, index: u32) -> OwnedBuffer {
    OwnedBuffer {
        // SAFETY: the pointer is an `Arc`'s, and the lease of this buffer left one count
        // of it behind when it returned the index, which is taken once (rule 1).
        slab: unsafe { Arc::from_raw(Arc::as_ptr(slab)) },
        index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> (Arc<BufferSlab>, FreeBuffers) {
        let slab = BufferSlab::allocate(3, 4096).unwrap();
        let free = FreeBuffers::all_of(&slab);
        (slab, free)
    }

    #[test]
    fn a_buffer_comes_back_when_its_lease_ends_on_any_thread() {
        let (slab, mut free) = three();
        let leases: Vec<_> = (0..3).map(|_| free.take().unwrap().lease()).collect();
        assert!(free.take().is_none());
        let bases: Vec<_> = leases.iter().map(BufferLease::base).collect();
        assert_eq!(bases[0], slab.base());
        // SAFETY: inside the slab.
        assert_eq!(bases[1], unsafe { slab.base().add(4096) });
        std::thread::spawn(move || drop(leases)).join().unwrap();
        assert!(free.has(3) && !free.has(4));
        assert_eq!(
            Arc::strong_count(&slab),
            5,
            "ours, the list's, one per buffer"
        );
    }

    #[test]
    fn the_slab_lives_until_the_last_lease_ends() {
        let (slab, mut free) = three();
        let (early, late) = (free.take().unwrap().lease(), free.take().unwrap().lease());
        drop(early);
        drop(free);
        assert_eq!(Arc::strong_count(&slab), 2, "ours and the lease's");
        // SAFETY: the lease is ours, and so is the byte.
        unsafe { late.base().write(7) };
        drop(late);
        assert_eq!(Arc::strong_count(&slab), 1);
    }
}
