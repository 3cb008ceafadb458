//! Payloads that differ from each other in every byte.
#![forbid(unsafe_code)]

use crate::draw::mix;

/// Returns the `length` bytes of message `sequence`.
#[must_use]
pub fn numbered(sequence: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(sequence, &mut bytes);
    bytes
}

/// Writes the bytes of message `sequence`.
pub fn fill(sequence: u64, bytes: &mut [u8]) {
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(sequence, index).to_le_bytes()[..chunk.len()]);
    }
}

/// Checks that `bytes` are exactly those of message `sequence`.
///
/// # Panics
///
/// If a byte differs.
pub fn check(sequence: u64, bytes: &[u8]) {
    for (index, chunk) in bytes.chunks(8).enumerate() {
        let expected = word(sequence, index).to_le_bytes();
        let is_right = match <[u8; 8]>::try_from(chunk) {
            Ok(chunk) => chunk == expected,
            Err(_) => *chunk == expected[..chunk.len()],
        };
        assert!(
            is_right,
            "message {sequence} of {} bytes differs at byte {}: {chunk:02x?} instead of {expected:02x?}",
            bytes.len(),
            index * 8,
        );
    }
}

/// Returns a word of the payload. The first is the sequence itself, for readers of a dump; the
/// others are mixed from sequence and place.
fn word(sequence: u64, index: usize) -> u64 {
    if index == 0 {
        return sequence;
    }
    mix(sequence.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}
