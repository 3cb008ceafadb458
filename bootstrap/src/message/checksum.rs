//! The checksum at the end of each message but *Hello*.

use crc_fast::{CrcAlgorithm, Digest};

/// Length of a checksum, a `u32` in little-endian order.
pub const CHECKSUM_BYTES: usize = 4;

/// The name of the checksum in errors: a field that is there whatever the kind of the message.
pub(crate) const CHECKSUM: &str = "checksum";

/// An empty prefix, for messages that are not the first of their end.
pub const ALONE: [&[u8]; 2] = [&[], &[]];

/// Computes the CRC32C ([RFC 3720, section
/// 12.1](https://www.rfc-editor.org/rfc/rfc3720#section-12.1)) of `before` and `message`, whose
/// length prefix is included. `before` is both Hellos, the dialer's first, for the first message of
/// an end behind its Hello. For the others it is [`ALONE`].
#[must_use]
pub fn checksum(before: [&[u8]; 2], message: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for bytes in [before[0], before[1], message] {
        digest.update(bytes);
    }
    digest.finalize() as u32
}
