//! The content of messages, which follows from their stream and number, so that each byte can be
//! checked.

use ibex_harness::draw::Draw;

/// Returns message `number` of a stream: up to `longest` bytes, mostly far fewer.
pub(crate) fn of_message(stream: u64, number: u64, lengths: Lengths) -> Vec<u8> {
    let mut draw = Draw::new(stream << 40 | number);
    let length = match lengths {
        Lengths::Mixed if draw.once_in(32) => draw.of(0..30_000),
        Lengths::Mixed => draw.of(0..200),
        Lengths::Large => draw.of(140_000..400_000),
    };
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        bytes.extend_from_slice(&draw.word().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// Classes of message lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lengths {
    /// Messages that share a frame, and some that fill their own.
    Mixed,
    /// Messages that are sent in chunks.
    Large,
}
