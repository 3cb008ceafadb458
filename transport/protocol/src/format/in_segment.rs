//! The place of a message in a segment of shared memory, as its record in the ring announces it.
#![forbid(unsafe_code)]

use super::record::LargeAnnouncement;

/// A message in a segment, as its announcement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSegment {
    /// Bytes of the message.
    pub length: u64,
    /// The slot of the segment.
    pub slot: u32,
    /// True if the segment is passed beside the ring.
    pub is_new: bool,
    /// True of a part of a segment, of which the announcement says where it begins.
    pub is_part: bool,
    /// Where the message begins in the segment; 0 unless it is a part.
    pub offset: u64,
}

impl InSegment {
    /// Reads the first two words of an announcement, in the order of their bytes. A third word, which
    /// is the offset, follows in that of a part.
    #[must_use]
    pub fn parse(words: [u64; 2]) -> Self {
        let [length, place] = words.map(u64::from_le);
        let flags = (place >> 32) as u8;
        Self {
            length,
            slot: place as u32,
            is_new: flags & IS_NEW != 0,
            is_part: flags & IS_PART != 0,
            offset: 0,
        }
    }

    /// Returns the length of the announcement.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.is_part {
            true => LargeAnnouncement::OF_PART_BYTES,
            false => LargeAnnouncement::BYTES,
        }
    }
}

/// The flag of a segment that is passed beside the ring.
pub(super) const IS_NEW: u8 = 1;
/// The flag of a part of a segment.
pub(super) const IS_PART: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_place_of_a_message_in_a_segment_is_read_as_it_was_written(
            length in any::<u32>(),
            slot: u32,
            is_new: bool,
            offset in any::<u32>(),
        ) {
            let (in_bytes, at) = (length as usize, offset as usize);
            let words = |announcement: &LargeAnnouncement| {
                let mut bytes = [0; LargeAnnouncement::OF_PART_BYTES];
                bytes[..announcement.bytes().len()].copy_from_slice(announcement.bytes());
                let word = |at: usize| bytes[8 * at..8 * at + 8].try_into().unwrap();
                [0, 1, 2].map(|at| u64::from_ne_bytes(word(at)))
            };
            let (length, offset) = (u64::from(length), u64::from(offset));
            for is_part in [true, false] {
                let announcement = match is_part {
                    true => LargeAnnouncement::of_part(in_bytes, slot, is_new, at),
                    false => LargeAnnouncement::in_segment(in_bytes, slot, is_new),
                };
                let [first, second, third] = words(&announcement);
                let read = InSegment::parse([first, second]);
                prop_assert_eq!(read, InSegment { length, slot, is_new, is_part, offset: 0 });
                prop_assert_eq!(read.bytes(), announcement.bytes().len());
                prop_assert_eq!(u64::from_le(third), if is_part { offset } else { 0 });
            }
        }
    }
}
