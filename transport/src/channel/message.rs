//! A message that was handed out: the place of its bytes, and the cell that records its release.

use std::{
    alloc, fmt, mem,
    num::NonZero,
    ptr::NonNull,
    slice,
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    thread,
};

use ibex_base::fork;
use ibex_protocol::format::trace_context::TraceContext;
use ibex_ring::{
    CellBlock, CellState,
    memory::{ProvidedRegion, Region},
};

use crate::wire::LandingRegion;

/// A received message's bytes, in the ring, in the arrival block, or in a buffer or region of its own.
///
/// Dropping it releases the space without acknowledging the message. It touches nothing
/// of its channel but the release cell, so it may outlive channel, session and node.
#[derive(Debug)]
pub struct RawMessage {
    payload: NonNull<u8>,
    length: usize,
    cells: &'static CellBlock,
    sequence: u64,
    aside: TimeOrRegion,
    units: u32,
    /// Bits of [`OWNED`], [`DETACHED`], [`ACKNOWLEDGES`], [`TRACED`] and [`IN_REGION`]. Most messages
    /// have none.
    marks: u8,
}

/// What a message has beside its payload.
#[derive(Clone, Copy)]
union TimeOrRegion {
    /// Time of arrival, in nanoseconds since 1970; 0 if it is unknown.
    time: u64,
    /// The region that the payload is the beginning of, which the message owns. Only of messages with
    /// the mark `IN_REGION`.
    landed: NonNull<LandedRegion>,
}

/// A region with a message in it.
struct LandedRegion {
    region: Region,
    /// As that of a message without a region.
    time: u64,
}

/// The ring's space was given back. The message owns its payload then.
const DETACHED: u8 = 1;
/// Dropping the message acknowledges it.
const ACKNOWLEDGES: u8 = 2;
/// A trace context lies behind the payload.
const TRACED: u8 = 4;
/// The payload lies in a buffer that the message owns.
const OWNED: u8 = 8;
/// The payload lies in a region that the message owns.
const IN_REGION: u8 = 16;

/// The payload of a message that is about to be handed out.
#[derive(Debug)]
pub(super) enum Payload {
    /// It is read where it lies, at this address and of this length.
    InPlace(NonNull<u8>, usize),
    /// It was copied.
    Copied(PayloadCopy),
    /// It is the beginning of the program's region, of this length.
    InRegion(LandingRegion, usize),
}

/// A copy of a payload.
#[derive(Debug)]
pub(super) struct PayloadCopy {
    bytes: NonNull<u8>,
    length: usize,
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

// SAFETY: the payload is immutable while the cell is held, so any thread may read it. The owner of
// this value settles the cell, once.
unsafe impl Send for RawMessage {}
// SAFETY: a shared message only reads the payload.
unsafe impl Sync for RawMessage {}

impl RawMessage {
    /// # Safety
    ///
    /// `payload..payload + length` stays valid and unchanged until the cell of `sequence`
    /// in `cells` is settled, and the cell is held for this message.
    pub(super) unsafe fn new(
        payload: NonNull<u8>,
        length: usize,
        cells: &'static CellBlock,
        sequence: u64,
        units: u32,
        time: u64,
    ) -> Self {
        Self {
            payload,
            length,
            cells,
            sequence,
            aside: TimeOrRegion { time },
            units,
            marks: 0,
        }
    }

    /// Returns a message that is the beginning of a region, for which the cell of `sequence` in `cells`
    /// is held.
    pub(super) fn in_region(
        region: ProvidedRegion,
        length: usize,
        cells: &'static CellBlock,
        sequence: u64,
        units: u32,
        time: u64,
    ) -> Self {
        let payload = region.base();
        let region = region.into_region();
        let landed = Box::leak(Box::new(LandedRegion { region, time }));
        Self {
            payload,
            length,
            cells,
            sequence,
            aside: TimeOrRegion {
                landed: NonNull::from(landed),
            },
            units,
            marks: IN_REGION,
        }
    }

    /// Returns a message with a payload of its own, for which the cell of `sequence` in `cells` is
    /// held.
    pub(super) fn of_copy(
        copy: PayloadCopy,
        cells: &'static CellBlock,
        sequence: u64,
        units: u32,
        time: u64,
    ) -> Self {
        let copy = mem::ManuallyDrop::new(copy);
        Self {
            payload: copy.bytes,
            length: copy.length,
            cells,
            sequence,
            aside: TimeOrRegion { time },
            units,
            marks: OWNED,
        }
    }

    /// Takes the trace context off the end of the bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes than those of a trace context.
    pub(super) fn take_trace_off(&mut self) {
        let length = self.length.checked_sub(TraceContext::BYTES);
        self.length = length.expect("the caller has looked at the length");
        self.marks |= TRACED;
    }

    /// Returns the trace context that the sender sent with the message. `None` if it sent none, or
    /// bytes that are no trace context.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        if self.marks & TRACED == 0 {
            return None;
        }
        // SAFETY: the mark says that the payload is followed by these bytes, which `take_trace_off`
        // took off it. They are valid and unchanged as long as the payload is (`new`), and `detach`
        // copies them with it.
        let bytes = unsafe {
            self.payload
                .add(self.length)
                .cast::<[u8; TraceContext::BYTES]>()
                .read()
        };
        TraceContext::from_bytes(bytes).ok()
    }

    /// The message's bytes as the sender wrote them.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are valid and unchanged until the cell is settled (`new`), which
        // happens when `self` is dropped. Those that the message owns are so too.
        unsafe { slice::from_raw_parts(self.payload.as_ptr(), self.length) }
    }

    /// Returns the message's place in its channel; the first message has 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns when the device had received the whole message, in nanoseconds since 1970, if the
    /// device reported it.
    #[must_use]
    pub fn received_at(&self) -> Option<NonZero<u64>> {
        let time = match self.marks & IN_REGION {
            // SAFETY: without the mark, it is the time.
            0 => unsafe { self.aside.time },
            // SAFETY: with the mark, it is the region, which the message owns.
            _ => unsafe { self.aside.landed.as_ref().time },
        };
        NonZero::new(time)
    }

    /// Releases the message, and returns the region that it lies at the beginning of, and its length.
    ///
    /// # Errors
    ///
    /// The message, if it lies in no region.
    pub fn into_region(self) -> Result<(Region, usize), Self> {
        if self.marks & IN_REGION == 0 {
            return Err(self);
        }
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: the mark says that the message owns this box, and the message is not used any more.
        let landed = unsafe { Box::from_raw(this.aside.landed.as_ptr()) };
        let state = state_of(this.marks, CellState::Dropped);
        this.cells.settle(this.sequence as u32, this.units, state);
        Ok((landed.region, this.length))
    }

    /// Returns whether the ring's space was given back.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.marks & DETACHED != 0
    }

    /// Tells the sender that the application is done with the message.
    #[inline]
    pub fn acknowledge(self) {
        let mut this = mem::ManuallyDrop::new(self);
        this.finish(CellState::Acknowledged);
    }

    /// Copies the bytes into a pooled buffer, unless they lie in one, and gives the ring's space
    /// back.
    pub fn detach(&mut self) {
        if self.is_detached() || fork::is_child() {
            return;
        }
        if self.marks & (OWNED | IN_REGION) == 0 {
            let length = owned_length(self.marks, self.length);
            let copy = buffers::take(length);
            // SAFETY: `copy` has room for `length` bytes and no other owner; the source is valid
            // (`new`), with the trace context behind it if there is one.
            unsafe { copy.copy_from_nonoverlapping(self.payload, length) };
            self.payload = copy;
            self.marks |= OWNED;
        }
        self.marks |= DETACHED;
        self.cells
            .settle(self.sequence as u32, self.units, CellState::Detached);
    }

    /// Sets whether dropping the message acknowledges it. A drop during a panic never does.
    pub fn acknowledge_on_drop(&mut self, does: bool) {
        self.marks = match does {
            true => self.marks | ACKNOWLEDGES,
            false => self.marks & !ACKNOWLEDGES,
        };
    }

    #[inline]
    fn finish(&mut self, state: CellState) {
        // Without marks, `state` is a compile-time constant.
        if self.marks == 0 {
            self.cells.settle(self.sequence as u32, self.units, state);
        } else {
            let parts = (self.payload, self.length, self.aside);
            let state = finish_marked(self.marks, parts, state);
            self.cells.settle(self.sequence as u32, self.units, state);
        }
    }
}

/// Frees the buffer or the region of a message that has one, and returns the state for the message's
/// cell.
///
/// The parts are passed by value: a reference would force the whole message into memory, even on
/// the path of messages without marks.
#[cold]
fn finish_marked(
    marks: u8,
    (payload, length, aside): (NonNull<u8>, usize, TimeOrRegion),
    state: CellState,
) -> CellState {
    if marks & OWNED != 0 && !fork::is_child() {
        buffers::give_back(payload, owned_length(marks, length));
    }
    if marks & IN_REGION != 0 && !fork::is_child() {
        // SAFETY: the mark says that the message owns this box, and the message ends here.
        drop(unsafe { Box::from_raw(aside.landed.as_ptr()) });
    }
    state_of(marks, state)
}

/// Returns the state for the cell of a message with marks that ends.
fn state_of(marks: u8, state: CellState) -> CellState {
    match marks & ACKNOWLEDGES != 0 && !thread::panicking() {
        true => CellState::Acknowledged,
        false => state,
    }
}

/// Returns the length of a payload with the trace context behind it, if there is one.
fn owned_length(marks: u8, length: usize) -> usize {
    match marks & TRACED {
        0 => length,
        _ => length + TraceContext::BYTES,
    }
}

impl fmt::Debug for TimeOrRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimeOrRegion")
    }
}

impl Drop for RawMessage {
    #[inline]
    fn drop(&mut self) {
        self.finish(CellState::Dropped);
    }
}

/// Buffers of messages that own their payloads, 64-byte aligned, kept for the next ones.
mod buffers {
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

    pub(super) fn take(length: usize) -> NonNull<u8> {
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

    pub(super) fn give_back(buffer: NonNull<u8>, length: usize) {
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
