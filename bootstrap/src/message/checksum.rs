//! The checksum at the end of each message but *Hello*.

use crc_fast::{CrcAlgorithm, Digest};

/// Length of a checksum, a `u32` in little-endian order.
pub const CHECKSUM_BYTES: usize = 4;

/// Nothing in front of a message: for each that is not the first of its end.
pub const ALONE: [&[u8]; 2] = [&[], &[]];

/// The CRC32C (polynomial of RFC 3720, section 12.1) of `message`, its length prefix included,
/// and of what is covered with it: both Hellos, the dialer's first, for the first message of an
/// end behind its Hello, and [`ALONE`] for the others.
#[must_use]
pub fn checksum(before: [&[u8]; 2], message: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for bytes in [before[0], before[1], message] {
        digest.update(bytes);
    }
    digest.finalize() as u32
}
