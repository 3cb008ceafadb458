//! A payload of any length that shows where it was cut, lost or doubled.

use ibex_harness::check;

use crate::session::Failure;

/// A block of known bytes, repeated. It fits a core's cache, so that checking costs the same
/// over every transport.
pub(crate) struct Pattern {
    /// The block twice, so that a piece of up to one block is contiguous wherever it begins.
    twice: Vec<u8>,
}

impl Pattern {
    pub(crate) fn new() -> Pattern {
        let mut twice = vec![0; 2 * BLOCK];
        let (one, other) = twice.split_at_mut(BLOCK);
        check::fill(0, one);
        other.copy_from_slice(one);
        Pattern { twice }
    }

    /// Returns the first `length` bytes of the pattern.
    pub(crate) fn bytes(&self, length: usize) -> Vec<u8> {
        let block = &self.twice[..BLOCK];
        block.iter().copied().cycle().take(length).collect()
    }

    /// Compares every byte of a piece that begins at byte `offset`.
    pub(crate) fn verify(&self, offset: usize, piece: &[u8]) -> Result<(), Failure> {
        for (index, part) in piece.chunks(BLOCK).enumerate() {
            let from = (offset + index * BLOCK) % BLOCK;
            if *part != self.twice[from..from + part.len()] {
                let at = offset + index * BLOCK;
                let length = part.len();
                return Err(format!("bytes {at} to {} came damaged", at + length).into());
            }
        }
        Ok(())
    }
}

const BLOCK: usize = 64 << 10;
