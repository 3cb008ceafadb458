//! The content of messages: stream and number, and bytes that follow from both, in lengths that
//! take every path.
#![forbid(unsafe_code)]

use ibex_harness::draw::Draw;

/// Bytes of the head: the stream and the number.
pub(crate) const HEAD_BYTES: usize = 16;

/// Writes message `sequence` of a stream, with `length` bytes and at least a head.
pub(crate) fn write(stream: u64, sequence: u64, length: usize, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(stream.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    let head = bytes.len();
    bytes.resize(length.max(head), 0);
    Draw::new(stream ^ sequence.rotate_left(32)).fill(&mut bytes[head..]);
}

/// Returns the stream that a message claims to belong to.
pub(crate) fn stream_of(bytes: &[u8]) -> Option<u64> {
    let head = bytes.get(..8)?;
    Some(u64::from_le_bytes(head.try_into().ok()?))
}

/// Returns a word that depends on every byte and on the length.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64;
    let mut mix = |word: u64| sum = (sum ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
    let words = bytes.chunks_exact(8);
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    words.for_each(|word| mix(u64::from_le_bytes(word.try_into().expect("eight bytes"))));
    mix(u64::from_le_bytes(rest));
    sum ^ (sum >> 32)
}

/// Draws a length. Most are short; longer ones are rarer: one in five has up to 2 kB, and the
/// rarest have memory of their own.
pub(crate) fn draw_length(draw: &mut Draw, rarity: u64) -> usize {
    let longest = match draw.of(0..500 * rarity) {
        0 => return draw.of(140_000..400_000) as usize,
        1..30 => 16_000,
        30..125 => 2_000,
        _ => 128,
    };
    draw.of(HEAD_BYTES as u64..longest) as usize
}

/// Odd, with well spread bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_depends_on_every_byte() {
        for length in [16, 17, 23, 24, 100] {
            let mut bytes = Vec::new();
            write(3, 5, length, &mut bytes);
            assert_eq!((bytes.len(), stream_of(&bytes)), (length, Some(3)));
            let sum = checksum(&bytes);
            for at in 0..length {
                bytes[at] ^= 1;
                assert_ne!(checksum(&bytes), sum, "byte {at} of {length}");
                bytes[at] ^= 1;
            }
            assert_ne!(checksum(&bytes[..length - 1]), sum);
        }
    }
}
