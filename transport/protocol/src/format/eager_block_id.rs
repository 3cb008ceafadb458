//! The numbers of blocks that a receiver grants ahead, as frames and records name them.

use ibex_base::field::{FieldError, FieldReader, WireField};

/// Blocks that a session is granted at most.
pub const EAGER_BLOCKS_PER_SESSION: usize = 128;

/// The number of one use of a block: 32 bits on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerBlockId {
    /// The index of the block in the session.
    pub index: u16,
    /// The number of earlier uses, modulo 2^16.
    pub generation: u16,
}

impl EagerBlockId {
    /// Returns the number as immediate data.
    #[must_use]
    pub fn to_word(self) -> u32 {
        u32::from(self.index) << 16 | u32::from(self.generation)
    }

    /// Creates the number from immediate data.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        Self {
            index: (word >> 16) as u16,
            generation: word as u16,
        }
    }
}

impl WireField for EagerBlockId {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        u32::read(from, name).map(Self::from_word)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.to_word().write(out);
    }
}
