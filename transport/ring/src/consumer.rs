//! The reading end of a ring that another thread or another process writes.
//!
//! Rules:
//!
//! 1. A header word is read once and believed only after it was checked: kind,
//!    sequence and length. The word is never read again.
//! 2. Nothing is ever written: the memory may be mapped read-only.
//! 3. Reading on and giving space back are different things: `advance` only
//!    moves this end, the release counters free the space.

use std::ptr::NonNull;

use ibex_base::sync::Ordering;
use ibex_protocol::format::record::{HEADER_BYTES, Layout, RecordHeader, RecordKind, UnknownKind};
use thiserror::Error;

use super::{
    producer::Released,
    ring_memory::{Mapped, RingMemory},
};

/// Reads records from a ring, in order.
#[derive(Debug)]
pub struct Consumer<M> {
    // The ring.
    memory: M,
    capacity: usize,
    layout: Layout,

    // The next record.
    position: u64,
    /// The sequence it must have.
    sequence: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// A consumer at the first record.
    ///
    /// # Panics
    ///
    /// The panics of [`resume`](Self::resume).
    #[must_use]
    pub fn new(memory: M, layout: Layout) -> Self {
        let nothing = Released {
            messages: 0,
            position: layout.first_position(),
        };
        Self::resume(memory, layout, nothing)
    }

    /// A consumer that goes on in the memory in which a producer
    /// [does](super::Producer::resume).
    ///
    /// # Panics
    ///
    /// If the capacity is not a power of two of at least four times the layout's step.
    #[must_use]
    pub fn resume(memory: M, layout: Layout, released: Released) -> Self {
        let capacity = memory.capacity();
        let least = 4 * layout.step();
        assert!(
            capacity.is_power_of_two() && capacity >= least,
            "a ring of {capacity} bytes: not a power of two of at least {least}"
        );
        Self {
            memory,
            capacity,
            layout,
            position: released.position,
            sequence: released.messages + 1,
        }
    }

    /// Returns how far the consumer has read, as the place to go on behind.
    #[must_use]
    pub fn read(&self) -> Released {
        Released {
            messages: self.sequence - 1,
            position: self.position,
        }
    }

    /// Goes back behind a record that was read before and is not released. Returns false and
    /// changes nothing if no record ends there; all records up to here are looked at.
    #[must_use]
    pub fn go_back(&mut self, to: Released) -> bool {
        let (mut position, mut sequence) = (to.position, to.messages + 1);
        let is_behind = position <= self.position && sequence <= self.sequence;
        if !is_behind || self.position - position > self.capacity as u64 {
            return false;
        }
        while sequence < self.sequence {
            match self.record_at(position, sequence) {
                Ok(Some(record)) => position += record.size as u64,
                _ => return false,
            }
            sequence += 1;
        }
        if position != self.position {
            return false;
        }
        (self.position, self.sequence) = (to.position, to.messages + 1);
        true
    }

    /// The next record, if it has been published.
    ///
    /// # Errors
    ///
    /// [`MalformedHeader`] if no producer writes such a header here. The consumer stays where it is and
    /// returns the same error again.
    #[inline]
    pub fn peek(&self) -> Result<Option<Record>, MalformedHeader> {
        self.record_at(self.position, self.sequence)
    }

    /// Moves on behind `record`, which must be the one that was just peeked.
    #[inline]
    pub fn advance(&mut self, record: &Record) {
        debug_assert_eq!(record.position, self.position);
        self.advance_by(record.size, 1);
    }

    /// The longest run of whole records from here that takes at most
    /// `max_bytes`, without consuming them.
    ///
    /// The run ends behind the first [large](RecordKind::is_large) one: that announcement is the
    /// last that may be sent before the message it announces.
    ///
    /// # Errors
    ///
    /// [`MalformedHeader`] as for [`peek`](Self::peek), once the records before are
    /// consumed.
    #[inline]
    pub fn walk(&self, max_bytes: usize) -> Result<RecordRun, MalformedHeader> {
        let mut run = RecordRun::default();
        loop {
            let record = self.record_at(
                self.position + run.bytes as u64,
                self.sequence + run.records,
            );
            match record {
                Ok(Some(record)) if record.size <= max_bytes - run.bytes => {
                    run.bytes += record.size;
                    run.records += 1;
                    if record.kind.is_large() {
                        run.large = Some(record);
                        return Ok(run);
                    }
                }
                Err(malformed) if run.records == 0 => return Err(malformed),
                _ => return Ok(run),
            }
        }
    }

    /// The run of whole records that goes into one frame: the [longest](Self::walk) that takes
    /// at most `batch` bytes, or, if the first record is longer, that one alone if it takes at
    /// most `single`.
    ///
    /// # Errors
    ///
    /// The errors of [`walk`](Self::walk).
    #[inline]
    pub fn walk_frame(&self, batch: usize, single: usize) -> Result<RecordRun, MalformedHeader> {
        let run = self.walk(batch)?;
        if run.records > 0 {
            return Ok(run);
        }
        Ok(match self.peek()? {
            Some(record) if record.size <= single => RecordRun {
                bytes: record.size,
                records: 1,
                large: record.kind.is_large().then_some(record),
            },
            _ => RecordRun::default(),
        })
    }

    /// Moves on behind `records` records of `bytes` bytes in all, as a walk
    /// found them.
    #[inline]
    pub fn advance_by(&mut self, bytes: usize, records: u64) {
        self.position += bytes as u64;
        self.sequence += records;
    }

    /// Returns whether no record is there yet: one relaxed load, for spinning. "Not empty" stays
    /// true.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory
            .load(self.offset(self.position), Ordering::Relaxed)
            == 0
    }

    /// Returns whether no record is there yet behind the next `bytes`, which are whole records.
    /// Like [`is_empty`](Self::is_empty) otherwise.
    #[inline]
    #[must_use]
    pub fn is_empty_behind(&self, bytes: usize) -> bool {
        let offset = self.offset(self.position + bytes as u64);
        self.memory.load(offset, Ordering::Relaxed) == 0
    }

    /// Returns where the next record begins.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the ring.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn record_at(&self, position: u64, sequence: u64) -> Result<Option<Record>, MalformedHeader> {
        let offset = self.offset(position);
        // PUBLISH, pairs with `Producer::publish`: the payload is complete once
        // its header is here. Rule 1: the only read of this word.
        // Model: loom_publish_then_read.
        let word = self.memory.load(offset, Ordering::Acquire);
        let header = match RecordHeader::from_word(word) {
            None => return Ok(None),
            Some(Ok(header)) => header,
            Some(Err(error)) => return Err(malformed(sequence, word, HeaderFault::Kind(error))),
        };
        if header.sequence_low != sequence as u32 {
            return Err(malformed(
                sequence,
                word,
                HeaderFault::Sequence(header.sequence_low),
            ));
        }
        let size = self.layout.size(header.length as usize);
        // The producer leaves room for the next header word, so anything longer is no record. This
        // check keeps every access inside the mapping.
        if size > self.capacity - HEADER_BYTES {
            return Err(malformed(
                sequence,
                word,
                HeaderFault::Length(header.length),
            ));
        }
        Ok(Some(Record {
            kind: header.kind,
            length: header.length as usize,
            sequence,
            position,
            offset,
            size,
        }))
    }

    #[inline]
    fn offset(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }
}

impl Consumer<Mapped> {
    /// The record at the front if it is an ordinary one: its payload, the payload's
    /// length and the record's size. `None` says that [`peek`](Self::peek) knows more.
    ///
    /// Small enough to be inlined with its caller, so that no part of the result passes through
    /// memory.
    #[inline(always)]
    #[must_use]
    pub fn peek_data(&self) -> Option<(NonNull<u8>, usize, usize)> {
        let offset = self.offset(self.position);
        // PUBLISH, pairs with `Producer::publish`, as in `record_at`.
        let word = self.memory.load(offset, Ordering::Acquire);
        let header = RecordHeader::of_data(word)?;
        if header.sequence_low != self.sequence as u32 {
            return None;
        }
        let length = header.length as usize;
        let size = self.layout.size(length);
        if size > self.capacity - HEADER_BYTES {
            return None;
        }
        let payload = self.memory.bytes(offset + HEADER_BYTES);
        NonNull::new(payload).map(|payload| (payload, length, size))
    }

    /// The first payload byte of a record that this consumer found: `length`
    /// bytes from here are mapped, and published until the record is released.
    #[inline]
    #[must_use]
    pub fn payload_ptr(&self, record: &Record) -> *const u8 {
        debug_assert!(record.offset + HEADER_BYTES + record.length <= 2 * self.capacity);
        self.memory.bytes(record.offset + HEADER_BYTES)
    }
}

/// A published record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The kind of the payload.
    pub kind: RecordKind,
    /// The length of the payload.
    pub length: usize,
    /// The message's sequence; the first is 1.
    pub sequence: u64,
    /// The position at which the record begins.
    pub position: u64,
    /// The record's position as an offset in the ring; the payload is 8 bytes further.
    pub offset: usize,
    /// Bytes up to the next record.
    pub size: usize,
}

/// A run of whole records, one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordRun {
    /// Their bytes, headers and padding included.
    pub bytes: usize,
    /// The number of records.
    pub records: u64,
    /// The last of them, if it announces a large message.
    pub large: Option<Record>,
}

/// The ring holds something that is no record of this channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the header of message {sequence} is malformed: {fault} (word {word:#018x}); \
     nothing behind it can be read, so the channel has to close"
)]
pub struct MalformedHeader {
    /// The sequence that was due.
    pub sequence: u64,
    /// The word as it was read.
    pub word: u64,
    /// The defect of the header.
    pub fault: HeaderFault,
}

/// The defect of a header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// A kind that we do not know.
    #[error("{0}")]
    Kind(UnknownKind),
    /// The sequence differs from the one that was due.
    #[error("it carries the low sequence {0}")]
    Sequence(u32),
    /// A payload longer than the ring.
    #[error("its payload of {0} bytes does not fit the ring")]
    Length(u32),
}

#[cold]
fn malformed(sequence: u64, word: u64, fault: HeaderFault) -> MalformedHeader {
    MalformedHeader {
        sequence,
        word,
        fault,
    }
}
