//! The payload of a message that is about to be handed out, and the memory of its copy.

use std::{
    alloc,
    ptr::NonNull,
    slice,
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use ibex_base::fork;

use crate::wire::EagerBlockRegion;

/// The payload of a message that is about to be handed out.
#[derive(Debug)]
pub(super) enum Payload {
    /// It is read where it lies, at this address and of this length.
    InPlace(NonNull<u8>, usize),
    /// It was copied.
    Copied(PayloadCopy),
    /// It is the beginning of the program's region, of this length.
    InRegion(EagerBlockRegion, usize),
}

/// A copy of a payload.
#[derive(Debug)]
pub(super) struct PayloadCopy {
    pub(super) bytes: NonNull<u8>,
    pub(super) length: usize,
}

// SAFETY: the buffer belongs to this value alone.
unsafe impl Send for PayloadCopy {}

impl Payload {
    pub(super) fn length(&self) -> usize {
        match self {
            Self::InPlace(_, length) | Self::InRegion(_, length) => *length,
            Self::Copied(copy) => copy.length,
        }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    ///
    /// Nobody writes to a payload that is read where it lies while the bytes are borrowed.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        let at = match self {
            Self::InPlace(at, _) => *at,
            Self::Copied(copy) => copy.bytes,
            Self::InRegion(region, _) => region.base(),
        };
        // SAFETY: that many bytes can be read there, as long as this value lives. Those that were
        // copied or lie in the program's region are this value's alone, and the caller vouches for
        // the others.
        unsafe { slice::from_raw_parts(at.as_ptr(), self.length()) }
    }
}

impl PayloadCopy {
    /// Copies a payload that another process may write to meanwhile. `None` if the allocator has no
    /// memory.
    ///
    /// # Safety
    ///
    /// `payload..payload + length` can be read during the call.
    pub(super) unsafe fn new(payload: NonNull<u8>, length: usize) -> Option<Self> {
        let bytes = buffers::try_take(length)?;
        // SAFETY: `try_take` gave room for `length` bytes, and the caller vouches for the payload.
        unsafe { copy_shared(payload, bytes, length) };
        Some(Self { bytes, length })
    }
}

/// Copies bytes that another process may write to meanwhile.
///
/// # Safety
///
/// `from..from + length` can be read during the call. `length` bytes can be written from `to` on, and
/// nobody else does so or reads there.
pub(super) unsafe fn copy_shared(from: NonNull<u8>, to: NonNull<u8>, length: usize) {
    let copy_byte = |index: usize| {
        // SAFETY: as below, by single bytes. The loop below and these calls stay below `length`.
        unsafe {
            let byte = from.cast::<AtomicU8>().add(index);
            to.add(index).write(byte.as_ref().load(Ordering::Relaxed));
        }
    };
    let head = from.align_offset(size_of::<u64>()).min(length);
    let words = (length - head) / size_of::<u64>();
    let tail = head + words * size_of::<u64>();
    (0..head).for_each(copy_byte);
    for index in 0..words {
        // SAFETY:
        // 1. In bounds of both: `index` is below the number of whole words behind `head`.
        // 2. Aligned: `from + head` is, unless there are no words, and `to` need not be.
        // 3. The source is read by atomic loads alone, because other processes may write there;
        //    relaxed loads of a word are allowed in memory that is mapped read-only.
        unsafe {
            let word = from.add(head).cast::<AtomicU64>().add(index);
            let word = word.as_ref().load(Ordering::Relaxed);
            to.add(head).cast::<u64>().add(index).write_unaligned(word);
        }
    }
    (tail..length).for_each(copy_byte);
}

impl Drop for PayloadCopy {
    fn drop(&mut self) {
        if !fork::is_child() {
            buffers::give_back(self.bytes, self.length);
        }
    }
}

/// Buffers of messages that own their payloads, 64-byte aligned, kept for the next ones.
pub(super) mod buffers {
    use super::{Mutex, NonNull, alloc};

    /// The pool keeps this many buffers of each size: 64 B, 128 B, … 64 KiB.
    const KEPT: usize = 32;
    const CLASSES: usize = 11;

    static POOL: Mutex<[Vec<Buffer>; CLASSES]> = Mutex::new([const { Vec::new() }; CLASSES]);

    struct Buffer(NonNull<u8>);
    // SAFETY: a pooled buffer belongs to the pool alone.
    unsafe impl Send for Buffer {}

    fn layout(length: usize) -> alloc::Layout {
        let bytes = length.max(64).next_power_of_two();
        alloc::Layout::from_size_align(bytes, 64).expect("a message fits the address space")
    }

    fn class(length: usize) -> usize {
        (layout(length).size() / 64).trailing_zeros() as usize
    }

    pub(in crate::channel) fn take(length: usize) -> NonNull<u8> {
        try_take(length).unwrap_or_else(|| alloc::handle_alloc_error(layout(length)))
    }

    pub(super) fn try_take(length: usize) -> Option<NonNull<u8>> {
        if let Some(class) = lock().get_mut(class(length))
            && let Some(buffer) = class.pop()
        {
            return Some(buffer.0);
        }
        let layout = layout(length);
        // SAFETY: the layout is not empty.
        let buffer = unsafe { alloc::alloc(layout) };
        NonNull::new(buffer)
    }

    pub(in crate::channel) fn give_back(buffer: NonNull<u8>, length: usize) {
        if let Some(class) = lock().get_mut(class(length))
            && class.len() < KEPT
        {
            class.push(Buffer(buffer));
            return;
        }
        // SAFETY: the buffer came from `take` with the same length, so with the same layout.
        unsafe { alloc::dealloc(buffer.as_ptr(), layout(length)) };
    }

    fn lock() -> std::sync::MutexGuard<'static, [Vec<Buffer>; CLASSES]> {
        POOL.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
