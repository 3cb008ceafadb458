//! A message that was handed out: the place of its bytes, and the cell that records its release.

use std::{fmt, mem, num::NonZero, ptr::NonNull, slice, thread};

use ibex_base::fork;
use ibex_protocol::format::{message_extension::MessageExtension, trace_context::TraceContext};
use ibex_ring::{
    CellBlock, CellState,
    memory::{ProvidedRegion, Region},
};

use super::payload::{PayloadCopy, buffers};

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
    aside: TimeOrRareParts,
    units: u32,
    /// Bytes behind the payload that the message has too: an extension.
    behind: u16,
    /// Bits of [`OWNED`], [`DETACHED`], [`ACKNOWLEDGES`], [`EXTENDED`], [`BESIDE`],
    /// [`IN_REGION`] and [`HEADED`]. Most messages have none.
    marks: u8,
}

/// What a message has beside its payload.
#[derive(Clone, Copy)]
union TimeOrRareParts {
    /// Time of arrival, in nanoseconds since 1970; 0 if it is unknown.
    time: u64,
    /// What few messages have, and own. Only of messages with the mark `BESIDE`.
    beside: NonNull<RareParts>,
}

/// What few messages have beside their payloads.
struct RareParts {
    /// The region that the payload is the beginning of, if there is one.
    region: Option<Region>,
    /// The extension of a large message, which is not behind its payload. Empty if there is none.
    extension: Box<[u8]>,
    /// As that of other messages.
    time: u64,
}

/// The ring's space was given back. The message owns its payload then.
const DETACHED: u8 = 1;
/// Dropping the message acknowledges it.
const ACKNOWLEDGES: u8 = 2;
/// The payload lies in a buffer that the message owns.
const OWNED: u8 = 4;
/// The payload lies in the region that the message has beside it.
const IN_REGION: u8 = 8;
/// The message owns something beside its payload.
const BESIDE: u8 = 16;
/// The message has an extension, which lies behind the payload, or beside it if it is large.
const EXTENDED: u8 = 32;
/// The extension had a header when the message was handed out.
const HEADED: u8 = 64;

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
            aside: TimeOrRareParts { time },
            units,
            behind: 0,
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
        let beside = RareParts {
            region: Some(region.into_region()),
            extension: Box::default(),
            time,
        };
        Self {
            payload,
            length,
            cells,
            sequence,
            aside: TimeOrRareParts::of(beside),
            units,
            behind: 0,
            marks: BESIDE | IN_REGION,
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
            aside: TimeOrRareParts { time },
            units,
            behind: 0,
            marks: OWNED,
        }
    }

    /// Takes an extension of this length off the end of the bytes, which the caller has found there.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub(super) fn take_extension_off(&mut self, bytes: usize) {
        let length = self.length.checked_sub(bytes);
        self.length = length.expect("the caller has looked at the length");
        self.behind = bytes as u16;
        self.marks |= EXTENDED;
        self.note_header();
    }

    /// Notes whether the extension has a header. A peer that maps the bytes may rewrite them later.
    fn note_header(&mut self) {
        if !self.header().is_empty() {
            self.marks |= HEADED;
        }
    }

    /// Keeps the extension of a large message, which the caller has checked.
    pub(super) fn keep_extension(&mut self, extension: Box<[u8]>) {
        if self.marks & BESIDE == 0 {
            // SAFETY: without the mark, it is the time.
            let time = unsafe { self.aside.time };
            self.aside = TimeOrRareParts::of(RareParts {
                region: None,
                extension,
                time,
            });
        } else {
            // SAFETY: with the mark, it is what the message owns, which is borrowed exclusively.
            unsafe { self.aside.beside.as_mut().extension = extension };
        }
        self.marks |= BESIDE | EXTENDED;
        self.note_header();
    }

    /// Returns what the message has beside its payload.
    fn beside(&self) -> Option<&RareParts> {
        match self.marks & BESIDE {
            0 => None,
            // SAFETY: with the mark, it is what the message owns, which is borrowed.
            _ => Some(unsafe { self.aside.beside.as_ref() }),
        }
    }

    /// Returns the bytes behind the payload that are the message's too.
    fn bytes_behind(&self) -> &[u8] {
        // SAFETY: `take_extension_off` took these bytes off the payload. They are valid and unchanged as long
        // as the payload is (`new`), and `detach` copies them with it.
        unsafe { slice::from_raw_parts(self.payload.add(self.length).as_ptr(), self.behind.into()) }
    }

    /// Returns the extension of a message that has one.
    #[inline]
    fn extension(&self) -> Option<MessageExtension<'_>> {
        match self.marks & EXTENDED {
            0 => None,
            _ => self.read_extension(),
        }
    }

    #[cold]
    fn read_extension(&self) -> Option<MessageExtension<'_>> {
        let beside = self.beside().map(|beside| &*beside.extension);
        let bytes = beside.filter(|extension| !extension.is_empty());
        let split = MessageExtension::split(bytes.unwrap_or_else(|| self.bytes_behind()));
        Some(split.ok()?.1)
    }

    /// Returns whether the message had a [header](Self::header) when it was handed out. The answer
    /// stays, whatever a peer writes to memory that it shares.
    #[inline]
    #[must_use]
    pub fn has_header(&self) -> bool {
        self.marks & HEADED != 0
    }

    /// Returns the header that the sender sent beside the message's bytes; empty if it sent none.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.extension().map_or(&[], |extension| extension.header)
    }

    /// Returns the trace context that the sender sent with the message. `None` if it sent none, or
    /// bytes that are no trace context.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        TraceContext::from_bytes(self.extension()?.trace?).ok()
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
        let time = match self.beside() {
            // SAFETY: without the mark `BESIDE`, it is the time.
            None => unsafe { self.aside.time },
            Some(beside) => beside.time,
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
        let beside = unsafe { Box::from_raw(this.aside.beside.as_ptr()) };
        let state = state_of(this.marks, CellState::Dropped);
        this.cells.settle(this.sequence as u32, this.units, state);
        let region = beside.region.expect("the mark says that there is one");
        Ok((region, this.length))
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
            let length = self.length + usize::from(self.behind);
            let copy = buffers::take(length);
            // SAFETY: `copy` has room for `length` bytes and no other owner; the source is valid
            // (`new`), with what it has behind it.
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
            let length = self.length + usize::from(self.behind);
            let parts = (self.payload, length, self.aside);
            let state = finish_marked(self.marks, parts, state);
            self.cells.settle(self.sequence as u32, self.units, state);
        }
    }
}

/// Frees the buffer of a message that has one, and what it has beside its payload, and returns the
/// state for the message's cell. The length is that of the payload with what is behind it.
///
/// The parts are passed by value: a reference would force the whole message into memory, even on
/// the path of messages without marks.
#[cold]
fn finish_marked(
    marks: u8,
    (payload, length, aside): (NonNull<u8>, usize, TimeOrRareParts),
    state: CellState,
) -> CellState {
    if marks & OWNED != 0 && !fork::is_child() {
        buffers::give_back(payload, length);
    }
    if marks & BESIDE != 0 && !fork::is_child() {
        // SAFETY: the mark says that the message owns this box, and the message ends here.
        drop(unsafe { Box::from_raw(aside.beside.as_ptr()) });
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

impl TimeOrRareParts {
    fn of(beside: RareParts) -> Self {
        Self {
            beside: NonNull::from(Box::leak(Box::new(beside))),
        }
    }
}

impl fmt::Debug for TimeOrRareParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimeOrRareParts")
    }
}

impl Drop for RawMessage {
    #[inline]
    fn drop(&mut self) {
        self.finish(CellState::Dropped);
    }
}
