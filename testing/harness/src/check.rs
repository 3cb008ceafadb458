//! The payload pattern: every byte tells its message and its place in it, and the receiver reads
//! every byte.
//!
//! Word `i` of message `n` is `ORIGIN + n * MESSAGE_STEP + i * WORD_STEP`, little endian. A length
//! that is no multiple of eight ends in the low bytes of one more word. Rules:
//!
//! 1. Both steps are odd. The lowest byte of a word therefore differs from those of its neighbours
//!    and of the messages before and after, so even one byte shows that a payload is stale, torn,
//!    shifted or swapped.
//! 2. The receiver knows the whole content from the sequence number alone and folds every
//!    difference into one word. This is a checksum without collisions, and costs no more than
//!    adding the words up.
//! 3. Neither side has a multiplication or a dependency per word, so both vectorize: about 2 ns for
//!    64 B, and memory speed for 1 MiB.
//!
//! The raw limits and the subjects that are compared to them use this same code.

#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

/// Writes the payload of message `sequence` over all of `payload`.
#[inline]
pub fn fill(sequence: u64, payload: &mut [u8]) {
    fill_part(sequence, 0, payload);
}

/// Writes a part of the payload that begins at byte `offset`, a multiple of 8.
#[inline]
pub fn fill_part(sequence: u64, offset: usize, part: &mut [u8]) {
    let mut first = first_word(sequence, offset);
    let (blocks, rest) = part.as_chunks_mut::<BLOCK_BYTES>();
    for block in blocks {
        for (bytes, word) in block.as_chunks_mut::<8>().0.iter_mut().zip(words(first)) {
            *bytes = word.to_le_bytes();
        }
        first = first.wrapping_add(BLOCK_STEP);
    }
    if !rest.is_empty() {
        fill_rest(first, rest);
    }
}

// This is not inlined, like `rest_difference`, so that the loops over blocks keep the registers.
#[inline(never)]
fn fill_rest(first: u64, rest: &mut [u8]) {
    let (whole, last) = rest.as_chunks_mut::<8>();
    let mut words = words(first).into_iter();
    for (bytes, word) in whole.iter_mut().zip(&mut words) {
        *bytes = word.to_le_bytes();
    }
    for (byte, value) in last.iter_mut().zip(words.next().unwrap_or(0).to_le_bytes()) {
        *byte = value;
    }
}

/// Reads every byte of `payload`. Returns the first that differs from message `sequence`.
#[inline]
pub fn verify(sequence: u64, payload: &[u8]) -> Result<(), Mismatch> {
    verify_part(sequence, 0, payload)
}

/// Reads every byte of a part that begins at byte `offset`, a multiple of 8.
#[inline]
pub fn verify_part(sequence: u64, offset: usize, part: &[u8]) -> Result<(), Mismatch> {
    let mut first = first_word(sequence, offset);
    let mut differences = [0; LANES];
    let (blocks, rest) = part.as_chunks::<BLOCK_BYTES>();
    for block in blocks {
        let words = block.as_chunks::<8>().0.iter().zip(words(first));
        for (difference, (bytes, word)) in differences.iter_mut().zip(words) {
            *difference |= u64::from_le_bytes(*bytes) ^ word;
        }
        first = first.wrapping_add(BLOCK_STEP);
    }
    let mut difference = differences.into_iter().fold(0, |all, one| all | one);
    if !rest.is_empty() {
        difference |= rest_difference(first, rest);
    }
    if difference == 0 {
        Ok(())
    } else {
        Err(Mismatch::find(sequence, offset, part))
    }
}

#[inline(never)]
fn rest_difference(first: u64, rest: &[u8]) -> u64 {
    let (whole, last) = rest.as_chunks::<8>();
    let mut words = words(first).into_iter();
    let mut difference = 0;
    for (bytes, word) in whole.iter().zip(&mut words) {
        difference |= u64::from_le_bytes(*bytes) ^ word;
    }
    for (byte, value) in last.iter().zip(words.next().unwrap_or(0).to_le_bytes()) {
        difference |= u64::from(byte ^ value);
    }
    difference
}

/// The first byte of a message that differs from the one sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The message that was expected.
    pub sequence: u64,
    /// The byte's place in the payload.
    pub offset: usize,
    /// The byte that was sent.
    pub expected: u8,
    /// The byte that was found.
    pub found: u8,
}

impl Mismatch {
    #[cold]
    fn find(sequence: u64, offset: usize, part: &[u8]) -> Mismatch {
        let mut sent = vec![0; part.len()];
        fill_part(sequence, offset, &mut sent);
        let index = part
            .iter()
            .zip(&sent)
            .position(|(found, sent)| found != sent)
            .unwrap_or(0);
        Mismatch {
            sequence,
            offset: offset + index,
            expected: sent[index],
            found: part[index],
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch {
            sequence,
            offset,
            expected,
            found,
        } = self;
        write!(
            f,
            "message {sequence}, byte {offset}: {expected:#04x} was sent, {found:#04x} came"
        )
    }
}

impl std::error::Error for Mismatch {}

/// The checks of one process: bytes compared, and faults found.
///
/// A damaged message is counted and the run continues, so that both processes stay in step and the
/// result shows the extent of the damage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Bytes that were read and compared.
    pub bytes: u64,
    /// Messages, or parts of long ones, that differ from those sent.
    pub faults: u64,
    /// A description of the first fault.
    pub first_fault: Option<String>,
}

impl Tally {
    /// Checks a whole message, its length included.
    #[inline]
    pub fn message(&mut self, sequence: u64, size: usize, payload: &[u8]) {
        if payload.len() != size {
            let length = payload.len();
            self.fault(&format_args!(
                "message {sequence}: {size} bytes were sent, {length} came"
            ));
        } else {
            self.part(sequence, 0, payload);
        }
    }

    /// Checks a part of a message that begins at byte `offset`, a multiple of 8.
    #[inline]
    pub fn part(&mut self, sequence: u64, offset: usize, part: &[u8]) {
        self.bytes += part.len() as u64;
        if let Err(mismatch) = verify_part(sequence, offset, part) {
            self.fault(&mismatch);
        }
    }

    /// Adds the checks of another process or run.
    pub fn merge(&mut self, other: &Tally) {
        self.bytes += other.bytes;
        self.faults += other.faults;
        if self.first_fault.is_none() {
            self.first_fault.clone_from(&other.first_fault);
        }
    }

    /// Counts a damaged message, for the reason `what`.
    #[cold]
    pub fn fault(&mut self, what: &dyn fmt::Display) {
        self.faults += 1;
        self.first_fault.get_or_insert_with(|| what.to_string());
    }
}

#[inline]
fn first_word(sequence: u64, offset: usize) -> u64 {
    debug_assert!(offset.is_multiple_of(8), "parts begin at whole words");
    ORIGIN
        .wrapping_add(sequence.wrapping_mul(MESSAGE_STEP))
        .wrapping_add((offset as u64 / 8).wrapping_mul(WORD_STEP))
}

#[inline]
fn words(first: u64) -> [u64; LANES] {
    std::array::from_fn(|lane| first.wrapping_add((lane as u64).wrapping_mul(WORD_STEP)))
}

/// Words that are processed side by side: one cache line.
const LANES: usize = 8;
const BLOCK_BYTES: usize = 8 * LANES;

// Odd numbers that are far from any short multiple of each other: 2^64 divided by the golden ratio
// (messages), by the root of g^4 = g + 1 (origin), and by its square (words), as low-discrepancy
// sequences use them. The origin makes message 0 differ from memory that nobody wrote.
const ORIGIN: u64 = 0xD1B5_4A32_D192_ED03;
const MESSAGE_STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const WORD_STEP: u64 = 0xABC9_8388_FB8F_AC03;
const BLOCK_STEP: u64 = WORD_STEP.wrapping_mul(LANES as u64);

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 12] = [0, 1, 7, 8, 9, 15, 16, 63, 64, 65, 200, 1031];

    #[test]
    fn a_filled_payload_verifies() {
        for size in SIZES {
            let mut payload = vec![0; size];
            for sequence in [0, 1, 2, 1 << 40, u64::MAX] {
                fill(sequence, &mut payload);
                assert_eq!(
                    verify(sequence, &payload),
                    Ok(()),
                    "{size} bytes, message {sequence}"
                );
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found_where_it_is() {
        for size in SIZES {
            let mut payload = vec![0; size];
            fill(7, &mut payload);
            for offset in 0..size {
                for bit in 0..8 {
                    payload[offset] ^= 1 << bit;
                    let mismatch = verify(7, &payload).unwrap_err();
                    assert_eq!(mismatch.offset, offset);
                    assert_eq!(mismatch.found, mismatch.expected ^ (1 << bit));
                    payload[offset] ^= 1 << bit;
                }
            }
        }
    }

    #[test]
    fn neighbours_and_untouched_memory_are_told_apart() {
        for size in SIZES.into_iter().filter(|&size| size > 0) {
            let mut payload = vec![0; size];
            assert!(verify(0, &payload).is_err(), "{size} zero bytes");
            for sequence in 0..300 {
                fill(sequence, &mut payload);
                assert!(verify(sequence + 1, &payload).is_err(), "{size} bytes");
            }
        }
        let mut words = [0; 16];
        fill(3, &mut words);
        words.rotate_left(8);
        assert!(verify(3, &words).is_err(), "swapped words");
    }

    #[test]
    fn parts_make_the_whole() {
        let mut whole = vec![0; 1031];
        fill(9, &mut whole);
        let mut parts = vec![0; 1031];
        let mut tally = Tally::default();
        for (index, part) in parts.chunks_mut(104).enumerate() {
            fill_part(9, index * 104, part);
            tally.part(9, index * 104, part);
        }
        assert_eq!(parts, whole);
        assert_eq!(
            tally,
            Tally {
                bytes: 1031,
                ..Tally::default()
            }
        );
    }

    #[test]
    fn a_tally_keeps_the_first_fault() {
        let mut tally = Tally::default();
        let mut payload = [0; 24];
        fill(5, &mut payload);
        tally.message(5, 24, &payload);
        assert_eq!(tally.faults, 0);
        payload[17] ^= 0x40;
        tally.message(5, 24, &payload);
        tally.message(6, 24, &payload[..8]);
        assert_eq!(tally.faults, 2);
        assert_eq!(tally.bytes, 48);
        assert!(tally.first_fault.unwrap().starts_with("message 5, byte 17"));
    }
}
