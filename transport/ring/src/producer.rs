//! The writing end of a ring.
//!
//! Rules:
//!
//! 1. The word at `position` is 0 until the record there is published: a
//!    reader that polls it never takes old payload for a header.
//! 2. So a record needs the space for the next header word too, and the producer zeroes that word
//!    before it stores the record's header.
//! 3. Space comes back only by [`Producer::refresh`]. The consumer's numbers are checked, and a
//!    consumer that lies loses its own messages and nothing else.

use std::mem::MaybeUninit;
use std::slice;

use ibex_base::sync::Ordering;
use ibex_protocol::format::record::{HEADER_BYTES, Layout, MAX_LENGTH, RecordHeader, RecordKind};
use thiserror::Error;

use super::ring_memory::{Mapped, RingMemory};

/// Writes records into a ring. A ring has one producer; several threads share it behind a lock.
#[derive(Debug)]
pub struct Producer<M> {
    // The ring.
    memory: M,
    capacity: usize,
    layout: Layout,
    window_messages: u64,

    // Records that were written.
    /// The position of the next record.
    position: u64,
    /// The last published sequence; 0 before the first message.
    sequence: u64,

    // Words that were zeroed for later records.
    /// Every word from the position to here where a header may come is 0.
    clean_until: u64,
    /// A slot was given out since the last publish.
    slot_is_out: bool,
    /// The offset and the header of the first record of a run that the reader does not see yet.
    hidden: Option<(usize, u64)>,

    /// Memory backs the ring up to this position; [`u64::MAX`] if it backs all of it.
    backed_until: u64,

    // Space that came back, as of the last refresh.
    released: Released,
    /// The last position at which the next header word may lie (rule 2).
    last_position: u64,
    /// The last sequence that the window takes.
    last_sequence: u64,
}

impl<M: RingMemory> Producer<M> {
    /// A producer of a new channel over memory of any content, all of it backed.
    ///
    /// `window_messages` bounds the messages that are published and not yet
    /// released.
    ///
    /// # Panics
    ///
    /// The panics of [`resume`](Self::resume).
    #[must_use]
    pub fn new(memory: M, layout: Layout, window_messages: u64) -> Self {
        let nothing = Released {
            messages: 0,
            position: layout.first_position(),
        };
        Self::resume(memory, layout, window_messages, nothing)
    }

    /// A producer that continues, in other memory, behind the records of another producer, all of
    /// which were released.
    ///
    /// # Panics
    ///
    /// If the window is 0, or the capacity is not a power of two from four times the
    /// layout's step to [`MAX_CAPACITY`].
    #[must_use]
    pub fn resume(memory: M, layout: Layout, window_messages: u64, released: Released) -> Self {
        let capacity = memory.capacity();
        let least = 4 * layout.step();
        assert!(
            capacity.is_power_of_two() && capacity >= least && capacity <= MAX_CAPACITY,
            "a ring of {capacity} bytes: not a power of two from {least} to {MAX_CAPACITY}"
        );
        assert!(window_messages > 0, "a window of no messages never opens");
        let position = released.position;
        // Rule 1. A reader learns of the ring by means that order this store before its reads.
        let offset = position as usize & (capacity - 1);
        memory.store(offset, 0, Ordering::Relaxed);
        Self {
            memory,
            capacity,
            layout,
            window_messages,
            position,
            sequence: released.messages,
            clean_until: position + layout.step() as u64,
            slot_is_out: false,
            hidden: None,
            backed_until: u64::MAX,
            released,
            last_position: last_position(released, capacity, u64::MAX),
            last_sequence: released.messages.saturating_add(window_messages),
        }
    }

    /// The longest payload that the next record can hold now; 0 if there can
    /// be no record.
    ///
    /// Counts the space that the last [`refresh`](Self::refresh) found, so there may be more and
    /// never less. [`fits`](Self::fits) tells whether a given length fits, an empty payload
    /// included.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.layout.payload(self.largest_record())
    }

    /// Returns whether a payload of `length` bytes can be published now.
    #[inline]
    #[must_use]
    pub fn fits(&self, length: usize) -> bool {
        length <= MAX_LENGTH as usize
            && self.sequence < self.last_sequence
            && self.position + self.layout.size(length) as u64 <= self.last_position
    }

    /// Returns the position that the ring must be [backed](Self::back_until) up to for a payload of
    /// `length` bytes.
    #[must_use]
    pub fn end_of(&self, length: usize) -> u64 {
        self.position + (self.layout.size(length) + HEADER_BYTES) as u64
    }

    /// Notes that memory backs the ring up to `position` and no further, or all of it if that is
    /// [`u64::MAX`]. No record goes beyond: [`fits`](Self::fits) counts that space as not free.
    pub fn back_until(&mut self, position: u64) {
        debug_assert!(position >= self.end_of(0), "the next header has a word");
        self.backed_until = position;
        self.last_position = last_position(self.released, self.capacity, position);
    }

    /// Returns whether the window has no message left, whether or not bytes are free.
    #[must_use]
    pub fn is_out_of_messages(&self) -> bool {
        self.sequence >= self.last_sequence
    }

    /// The longest payload that is worth waiting for: half the ring less the
    /// header.
    ///
    /// An empty ring could hold nearly twice as much, but then writer and reader would work in
    /// turns, and a single held message would block the ring. Longer messages travel outside the
    /// ring.
    #[inline]
    #[must_use]
    pub fn largest(&self) -> usize {
        self.capacity / 2 - HEADER_BYTES
    }

    /// Takes note of what the consumer has released.
    ///
    /// # Errors
    ///
    /// [`Misbehaved`] if a number went back or is beyond what was published;
    /// nothing has changed then. The two numbers may be of different age (they
    /// are read one after the other) and are not checked against each other.
    #[inline]
    pub fn refresh(&mut self, released: Released) -> Result<(), Misbehaved> {
        let sane = released.messages >= self.released.messages
            && released.messages <= self.sequence
            && released.position >= self.released.position
            && released.position <= self.position;
        if !sane {
            return Err(self.misbehaved(released));
        }
        self.released = released;
        self.last_position = last_position(released, self.capacity, self.backed_until);
        self.last_sequence = released.messages.saturating_add(self.window_messages);
        Ok(())
    }

    /// Makes the record at the position visible and returns its sequence; the first is 1. The
    /// record's payload is the content of the slot.
    #[inline]
    pub fn publish(&mut self, kind: RecordKind, length: usize) -> u64 {
        debug_assert!(self.hidden.is_none(), "a run is revealed first");
        let (offset, header, next) = self.prepare(kind, length);
        // PUBLISH, pairs with `Consumer::peek`: a reader of this header sees the
        // payload. Model: loom_publish_then_read.
        self.memory.store(offset, header, Ordering::Release);
        self.pass(next)
    }

    /// Adds the record at the position to a run that becomes visible as a whole, by
    /// [`reveal`](Self::reveal). Otherwise as [`publish`](Self::publish).
    #[inline]
    pub fn append(&mut self, kind: RecordKind, length: usize) -> u64 {
        let (offset, header, next) = self.prepare(kind, length);
        match self.hidden {
            None => self.hidden = Some((offset, header)),
            // No reader comes here before it has seen the first header of the run.
            Some(_) => self.memory.store(offset, header, Ordering::Relaxed),
        }
        self.pass(next)
    }

    /// Makes the run visible that was appended, if there is one.
    #[inline]
    pub fn reveal(&mut self) {
        if let Some((offset, header)) = self.hidden.take() {
            // PUBLISH, pairs with `Consumer::peek`: a reader of the first header sees all records of
            // the run, and the 0 behind them. Model: loom_run_is_seen_whole.
            self.memory.store(offset, header, Ordering::Release);
        }
    }

    /// Numbers the record at the position. Returns its offset, its header, and the next position.
    #[inline(always)]
    fn prepare(&mut self, kind: RecordKind, length: usize) -> (usize, u64, u64) {
        debug_assert!(self.fits(length), "{length} bytes, room {}", self.room());
        let size = self.layout.size(length);
        let offset = self.offset();
        self.sequence += 1;
        let header = RecordHeader {
            kind,
            length: length as u32,
            sequence_low: self.sequence as u32,
        };
        // Rule 1 for the next record, unless its word is clean already. The store
        // of a header orders it: a reader that sees our header sees this 0, or what we have
        // stored there since. The offset may lie in the second mapping, where
        // the slot's bytes are reached as well (rule 4 of the memory).
        // Model: loom_old_payload_is_no_header.
        let next = self.position + size as u64;
        if next >= self.clean_until {
            self.memory.store(offset + size, 0, Ordering::Relaxed);
            self.clean_until = next + self.layout.step() as u64;
        }
        (offset, header.to_word(), next)
    }

    /// Goes to the next position. Returns the last record's sequence.
    #[inline(always)]
    fn pass(&mut self, next: u64) -> u64 {
        self.position = next;
        self.slot_is_out = false;
        self.clean_ahead();
        self.sequence
    }

    /// Zeroes a word in each of the lines that the next records will be written to, as
    /// far as they are free.
    ///
    /// This happens after the header is stored, while the reader is busy with that record, so that
    /// the line is ours when the next record comes. Publishing waits for the stores before it, and
    /// a line that the reader had one lap ago takes as long as the message itself. 64 bytes take
    /// 100 ns one way without this and 52 with it (far: 383 and 239), for the ring alone.
    #[inline(always)]
    fn clean_ahead(&mut self) {
        let target = (self.position + self.layout.ahead()).min(self.last_position + 1);
        let mut at = self.clean_until;
        while at < target {
            let offset = at as usize & (self.capacity - 1);
            self.memory.store(offset, 0, Ordering::Relaxed);
            at += self.layout.step() as u64;
        }
        self.clean_until = at;
    }

    /// The last published sequence; 0 before the first.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns where the next record will begin: all bytes ever written, and the first position.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the progress of the last refresh.
    #[inline]
    #[must_use]
    pub fn released(&self) -> Released {
        self.released
    }

    /// Returns whether all that was published had been released at the last refresh. "Drained"
    /// stays true until the next publish; "not drained" may be old.
    #[inline]
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let end = Released {
            messages: self.sequence,
            position: self.position,
        };
        self.released == end
    }

    /// Returns the ring.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn offset(&self) -> usize {
        self.position as usize & (self.capacity - 1)
    }

    /// The largest record that may be written now, 0 if none: what is free,
    /// less the next header word (rule 2), rounded down.
    #[inline]
    fn largest_record(&self) -> usize {
        if self.sequence >= self.last_sequence {
            return 0;
        }
        let free = self.last_position.saturating_sub(self.position) as usize;
        free & !(self.layout.step() - 1)
    }

    #[cold]
    fn misbehaved(&self, released: Released) -> Misbehaved {
        Misbehaved {
            claimed: released,
            before: self.released,
            published: Released {
                messages: self.sequence,
                position: self.position,
            },
        }
    }
}

impl Producer<Mapped> {
    /// The bytes into which the next payload goes: [`room`](Self::room) of
    /// them, aligned as the layout says.
    ///
    /// The reader sees the bytes only after [`publish`](Self::publish); a slot that is dropped has
    /// no effect. The length given to `publish` covers every byte that was written into the last
    /// slot.
    #[inline]
    pub fn slot(&mut self) -> &mut [MaybeUninit<u8>] {
        if std::mem::replace(&mut self.slot_is_out, true) {
            // An abandoned slot keeps its bytes: only the word of the next header is known to be
            // 0, which no slot contains.
            self.clean_until = self.position + self.layout.step() as u64;
        }
        let room = self.room();
        let payload = self.memory.bytes(self.offset() + HEADER_BYTES);
        // SAFETY:
        // 1. In bounds: the offset is at most the capacity (positions are
        //    multiples of 8 and so at most capacity - 8 in the ring) and the
        //    room less than it, which are mapped from there (`Mapped::new`).
        // 2. Ours alone: these bytes lie between the position and the last released record plus one
        //    lap, where no code in this process reads and we alone write (`Mapped::new`);
        //    `&mut self` keeps us from giving them out twice.
        // 3. Not initialised as far as the type says, so any content will do.
        unsafe { slice::from_raw_parts_mut(payload.cast(), room) }
    }

    /// The first `length` bytes of the last slot, to be read before it is published.
    ///
    /// # Panics
    ///
    /// If the slot is not that long.
    #[inline]
    pub fn written(&self, length: usize) -> &[MaybeUninit<u8>] {
        assert!(
            length <= self.room(),
            "{length} bytes, room {}",
            self.room()
        );
        let payload = self.memory.bytes(self.offset() + HEADER_BYTES);
        // SAFETY: in bounds and ours alone as in `slot`, whose room only grows until the next
        // publish; `&self` keeps anyone from writing there meanwhile.
        unsafe { slice::from_raw_parts(payload.cast(), length) }
    }
}

/// The last place for a header word when so much has been released and is backed.
#[inline]
fn last_position(released: Released, capacity: usize, backed_until: u64) -> u64 {
    let lap = released.position + capacity as u64;
    lap.min(backed_until) - HEADER_BYTES as u64
}

/// The progress of a consumer's releases: cumulative, so late changes are harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Messages, counted from 1: the contiguous prefix whose guards are gone.
    pub messages: u64,
    /// The position where that prefix ends.
    pub position: u64,
}

/// A consumer claims to have released what it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the consumer claims to have released message {} (position {}), which is outside of {} (position {}), \
     its last claim, to {} (position {}), all that was published; \
     its counters cannot be trusted any more, so the channel has to close",
    claimed.messages, claimed.position, before.messages, before.position,
    published.messages, published.position
)]
pub struct Misbehaved {
    /// The progress that the consumer claims now.
    pub claimed: Released,
    /// The progress that the consumer claimed before.
    pub before: Released,
    /// The progress of publishing.
    pub published: Released,
}

/// The largest ring. Half of it is the largest record, which a header's 28
/// bits can state.
pub const MAX_CAPACITY: usize = 1 << 28;

const _: () = assert!(MAX_CAPACITY / 2 <= MAX_LENGTH as usize);

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
