//! A record: one message as it lies in a ring, a header word and its payload.
//!
//! Rules of the layout, which a writer and a reader in different processes
//! share:
//!
//! 1. A record is its header word (8 bytes) followed at once by its payload,
//!    padded so that the next record's payload is aligned again.
//! 2. Payloads are aligned to the channel's alignment (a power of two from
//!    [`MIN_ALIGNMENT`] to [`MAX_ALIGNMENT`]), so records begin 8 bytes before
//!    an aligned address: every position is `alignment - 8` modulo the
//!    alignment.
//! 3. Positions are 64-bit, begin at [`first_position`] and only grow; the
//!    offset in the ring is the position modulo the capacity.
//! 4. A header word is never 0. 0 says "nothing here yet".
//! 5. Where the reader polls the ring itself, no two records share a cache line
//!    ([`Layout::in_lines`]); records that travel in frames are packed.
//!
//! ```text
//!   63   60 59                32 31                 0
//!  +-------+--------------------+--------------------+
//!  | kind  |  payload length    |  sequence, low 32  |   little-endian
//!  +-------+--------------------+--------------------+
//! ```
#![forbid(unsafe_code)]

use thiserror::Error;

use super::{
    eager_block_id::{EAGER_BLOCKS_PER_SESSION, EagerBlockId},
    in_segment::{IS_NEW, IS_PART},
};

/// The header word in front of a payload, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of the payload.
    pub kind: RecordKind,
    /// Payload bytes, without header and padding; at most [`MAX_LENGTH`].
    pub length: u32,
    /// The low 32 bits of the message's sequence, against which a reader
    /// checks what it expects.
    pub sequence_low: u32,
}

impl RecordHeader {
    /// The word as it is stored in the ring, in native byte order; memory is
    /// little-endian on every target we support.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u64 {
        debug_assert!(self.length <= MAX_LENGTH);
        (self.kind as u64) << KIND_SHIFT
            | (self.length as u64) << LENGTH_SHIFT
            | self.sequence_low as u64
    }

    /// Takes a word apart: `None` where nothing has been published.
    ///
    /// The word may come from a hostile peer, so an unknown kind is an error
    /// and not a panic. Length and sequence are for the caller to check.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Result<Self, UnknownKind>> {
        if word == 0 {
            return None;
        }
        let kind = match word >> KIND_SHIFT {
            1 => RecordKind::Data,
            2 => RecordKind::Large,
            3 => RecordKind::ExtendedData,
            4 => RecordKind::ExtendedLarge,
            _ => return Some(Err(UnknownKind { word })),
        };
        Some(Ok(Self {
            kind,
            length: (word >> LENGTH_SHIFT) as u32 & MAX_LENGTH,
            sequence_low: word as u32,
        }))
    }

    /// Parses a word that stands before an ordinary message; for all others use
    /// [`from_word`](Self::from_word).
    #[inline(always)]
    #[must_use]
    pub const fn of_data(word: u64) -> Option<Self> {
        if word >> KIND_SHIFT != RecordKind::Data as u64 {
            return None;
        }
        Some(Self {
            kind: RecordKind::Data,
            length: (word >> LENGTH_SHIFT) as u32 & MAX_LENGTH,
            sequence_low: word as u32,
        })
    }
}

/// The kind of a record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// The encoded message itself.
    Data = 1,
    /// The [announcement](LargeAnnouncement) of a message that travels outside the ring.
    Large = 2,
    /// [`Data`](Self::Data) with an [extension](super::message_extension) behind it.
    ExtendedData = 3,
    /// [`Large`](Self::Large), with the message's [extension](super::message_extension) behind the
    /// announcement.
    ExtendedLarge = 4,
}

impl RecordKind {
    /// Returns whether the record announces a message that travels outside the ring.
    #[inline]
    #[must_use]
    pub const fn is_large(self) -> bool {
        matches!(self, Self::Large | Self::ExtendedLarge)
    }

    /// Returns whether the record ends with an extension.
    #[inline]
    #[must_use]
    pub const fn is_extended(self) -> bool {
        matches!(self, Self::ExtendedData | Self::ExtendedLarge)
    }
}

/// The number of no block: a session has fewer.
const NO_BLOCK: EagerBlockId = EagerBlockId {
    index: u16::MAX,
    generation: u16::MAX,
};
const _: () = assert!(EAGER_BLOCKS_PER_SESSION < u16::MAX as usize);

/// The announcement of a message that travels outside the ring: its length, and the segment that the
/// peer maps or the block that the peer granted, if the message lies in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeAnnouncement {
    bytes: [u8; Self::OF_PART_BYTES],
    length: usize,
}

impl LargeAnnouncement {
    /// The length of every announcement, but for one [of a part](Self::of_part).
    pub const BYTES: usize = 16;
    /// The length of the announcement of a message in a part of a segment.
    pub const OF_PART_BYTES: usize = 24;

    /// The message goes in chunks.
    #[must_use]
    pub fn in_chunks(length: usize) -> Self {
        Self::in_eager_block(length, NO_BLOCK)
    }

    /// The message was written into a eager block.
    #[must_use]
    pub fn in_eager_block(length: usize, eager_block: EagerBlockId) -> Self {
        Self::in_place(length, eager_block.to_word())
    }

    fn in_place(length: usize, place: u32) -> Self {
        let mut bytes = [0; Self::OF_PART_BYTES];
        bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
        bytes[8..12].copy_from_slice(&place.to_le_bytes());
        Self {
            bytes,
            length: Self::BYTES,
        }
    }

    /// Makes the payload of an announcement [in a block](Self::in_eager_block) say that the message
    /// goes in chunks: the block is no longer available.
    pub fn forget_block(payload: &mut [u8; Self::BYTES]) {
        payload[8..12].copy_from_slice(&NO_BLOCK.to_word().to_le_bytes());
    }

    /// Length of a message that travels beside the ring, and where it was written, if it was;
    /// `None` if the bytes are no such announcement.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<(u64, Option<EagerBlockId>)> {
        let (length, place) = payload.split_first_chunk()?;
        let (word, [0, 0, 0, 0]) = place.split_first_chunk()? else {
            return None;
        };
        let eager_block = EagerBlockId::from_word(u32::from_le_bytes(*word));
        let eager_block = (eager_block != NO_BLOCK).then_some(eager_block);
        Some((u64::from_le_bytes(*length), eager_block))
    }

    /// The message lies in a segment; one that is new is passed beside the ring.
    #[must_use]
    pub fn in_segment(length: usize, slot: u32, is_new: bool) -> Self {
        let mut announcement = Self::in_place(length, slot);
        announcement.bytes[12] = if is_new { IS_NEW } else { 0 };
        announcement
    }

    /// The message is a part of a segment, which begins at `offset`.
    #[must_use]
    pub fn of_part(length: usize, slot: u32, is_new: bool, offset: usize) -> Self {
        let mut bytes = Self::in_segment(length, slot, is_new).bytes;
        bytes[12] |= IS_PART;
        bytes[16..].copy_from_slice(&(offset as u64).to_le_bytes());
        Self {
            bytes,
            length: Self::OF_PART_BYTES,
        }
    }

    /// Returns the announcement as it stands in the record.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A header word whose kind this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("header word {word:#018x} has kind {}, which is none of 1 to 4", word >> KIND_SHIFT)]
pub struct UnknownKind {
    /// The word as it was read.
    pub word: u64,
}

/// Bytes of a header word.
pub const HEADER_BYTES: usize = 8;

/// The longest payload that a header can state (28 bits).
pub const MAX_LENGTH: u32 = (1 << (KIND_SHIFT - LENGTH_SHIFT)) - 1;

/// The smallest payload alignment: header words must be aligned themselves.
pub const MIN_ALIGNMENT: usize = 8;

/// The largest payload alignment: arrival blocks are aligned to a cache line
/// and no further.
pub const MAX_ALIGNMENT: usize = 64;

/// Returns the position of the first record of a ring (rule 2).
#[inline]
#[must_use]
pub const fn first_position(alignment: usize) -> u64 {
    (alignment - HEADER_BYTES) as u64
}

/// The bytes from a packed record's position to the next one's: header, payload and
/// padding.
#[inline]
#[must_use]
pub const fn record_size(length: usize, alignment: usize) -> usize {
    (HEADER_BYTES + length + alignment - 1) & !(alignment - 1)
}

/// The rules by which the records of a ring follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    first_position: u64,
    /// Every record is a multiple of this.
    step: usize,
    /// Bytes of a record's first line that lie before it.
    lead: usize,
    ahead: usize,
}

impl Layout {
    /// Lays records out without gaps, as frames carry them.
    ///
    /// # Panics
    ///
    /// If `alignment` is not a power of two from 8 to 64; so does [`in_lines`](Self::in_lines).
    #[must_use]
    pub const fn packed(alignment: usize) -> Self {
        assert!(
            is_alignment(alignment),
            "an alignment is a power of two from 8 to 64"
        );
        Self {
            first_position: first_position(alignment),
            step: alignment,
            lead: 0,
            ahead: 0,
        }
    }

    /// Gives each record cache lines of its own, for a reader that polls the next header.
    ///
    /// The reader takes a line with both the end of one record and the header of the next away
    /// from its writer in the middle of a record. Through a read-only mapping 64 bytes take
    /// 75 ns one way packed and 55 ns in lines (far: 320 and 230), for the ring alone.
    #[must_use]
    pub const fn in_lines(alignment: usize) -> Self {
        let packed = Self::packed(alignment);
        Self {
            step: CACHE_LINE,
            lead: packed.first_position as usize % CACHE_LINE,
            ahead: 4 * CACHE_LINE,
            ..packed
        }
    }

    /// Returns the position of the first record (rule 2).
    #[inline]
    #[must_use]
    pub const fn first_position(self) -> u64 {
        self.first_position
    }

    /// The bytes from a record's position to the next one's.
    #[inline]
    #[must_use]
    pub const fn size(self, length: usize) -> usize {
        record_size(self.lead + length, self.step)
    }

    /// The longest payload of a record of `size` bytes.
    #[inline]
    #[must_use]
    pub const fn payload(self, size: usize) -> usize {
        size.saturating_sub(self.lead + HEADER_BYTES)
    }

    /// Returns how many bytes ahead of its position a producer zeroes the words where headers may
    /// come: the lines of the next record or two of a short message.
    #[inline]
    #[must_use]
    pub const fn ahead(self) -> u64 {
        self.ahead as u64
    }

    /// Returns the power of two that divides every record's size.
    #[inline]
    #[must_use]
    pub const fn step(self) -> usize {
        self.step
    }
}

/// Returns whether `alignment` can be a channel's payload alignment.
#[inline]
#[must_use]
pub const fn is_alignment(alignment: usize) -> bool {
    alignment.is_power_of_two() && alignment >= MIN_ALIGNMENT && alignment <= MAX_ALIGNMENT
}

/// Bytes that travel between CPUs together; less in models, whose rings are small.
const CACHE_LINE: usize = if cfg!(loom) { 16 } else { 64 };
const LENGTH_SHIFT: u32 = 32;
const KIND_SHIFT: u32 = 60;

const _: () = assert!(
    cfg!(target_endian = "little") && usize::BITS == 64,
    "header words are stored natively and must come out little-endian; positions are 64-bit"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_is_no_record_and_the_smallest_record_is_not_zero() {
        assert_eq!(RecordHeader::from_word(0), None);
        let empty = RecordHeader {
            kind: RecordKind::Data,
            length: 0,
            sequence_low: 0,
        };
        assert_ne!(empty.to_word(), 0);
    }

    #[test]
    fn sizes_keep_positions_aligned() {
        for alignment in [8, 16, 32, 64] {
            let mut position = first_position(alignment);
            for length in 0..200 {
                assert_eq!((position as usize + HEADER_BYTES) % alignment, 0);
                let size = record_size(length, alignment);
                assert!(size >= HEADER_BYTES + length && size < HEADER_BYTES + length + alignment);
                position += size as u64;
            }
        }
        assert_eq!(record_size(0, 8), 8);
        assert_eq!(record_size(56, 64), 64);
        assert_eq!(record_size(57, 64), 128);
    }

    #[test]
    fn records_in_lines_share_none() {
        for alignment in [8, 16, 32, 64] {
            let layout = Layout::in_lines(alignment);
            let mut position = layout.first_position() as usize;
            for length in 0..200 {
                let last = position + HEADER_BYTES + length - 1;
                position += layout.size(length);
                assert_eq!((position + HEADER_BYTES) % alignment, 0);
                assert!(last / 64 < position / 64);
            }
        }
    }

    #[test]
    fn the_error_names_the_kind() {
        let Some(Err(error)) = RecordHeader::from_word(0x7000_0000_0000_0001) else {
            panic!("kind 7 was accepted");
        };
        assert_eq!(
            error.to_string(),
            "header word 0x7000000000000001 has kind 7, which is none of 1 to 4"
        );
    }

    proptest! {
        #[test]
        fn headers_survive_the_round_trip(
            large: bool,
            extended: bool,
            length in 0..=MAX_LENGTH,
            sequence_low: u32,
        ) {
            let kind = match (large, extended) {
                (false, false) => RecordKind::Data,
                (true, false) => RecordKind::Large,
                (false, true) => RecordKind::ExtendedData,
                (true, true) => RecordKind::ExtendedLarge,
            };
            prop_assert_eq!((kind.is_large(), kind.is_extended()), (large, extended));
            let header = RecordHeader { kind, length, sequence_low };
            prop_assert_eq!(RecordHeader::from_word(header.to_word()), Some(Ok(header)));
        }

        #[test]
        fn announcements_survive_the_round_trip(length in 1..1usize << 40, word: Option<u32>) {
            let eager_block = word.map(EagerBlockId::from_word);
            let announcement = match eager_block {
                None => LargeAnnouncement::in_chunks(length),
                Some(eager_block) => LargeAnnouncement::in_eager_block(length, eager_block),
            };
            prop_assert_eq!(announcement.bytes().len(), LargeAnnouncement::BYTES);
            let parsed = LargeAnnouncement::parse(announcement.bytes());
            let eager_block = eager_block.filter(|eager_block| *eager_block != NO_BLOCK);
            prop_assert_eq!(parsed, Some((length as u64, eager_block)));
        }

        #[test]
        fn any_announcement_of_a_large_message_is_read_or_refused(payload: Vec<u8>) {
            let parsed = LargeAnnouncement::parse(&payload);
            prop_assert!(parsed.is_none() || payload.len() == LargeAnnouncement::BYTES);
        }

        #[test]
        fn every_word_is_nothing_a_header_or_an_error(word: u64) {
            let of_data = RecordHeader::of_data(word);
            prop_assert_eq!(of_data, RecordHeader::from_word(word).and_then(Result::ok).filter(|header| header.kind == RecordKind::Data));
            match RecordHeader::from_word(word) {
                None => prop_assert_eq!(word, 0),
                Some(Ok(header)) => prop_assert_eq!(header.to_word(), word),
                Some(Err(error)) => prop_assert_eq!(error.word, word),
            }
        }
    }
}
