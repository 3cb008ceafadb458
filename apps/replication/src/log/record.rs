//! A record as it lies in the log, in its file and on the wire.
//!
//! ```text
//! 0         4       8          16
//! checksum  length  number     payload, `length` bytes       (little-endian)
//! ```
//!
//! 1. A checksum continues that of the record before it, so the last one vouches for the
//!    whole log up to there: two logs that end in the same [`Tip`] are the same.
//! 2. Numbers begin at 1 and have no gaps, so zeroed space is no record.

use std::fmt;

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};
use serde::{Deserialize, Serialize};

/// Bytes of the header before each payload.
pub(crate) const HEADER_BYTES: usize = 16;

/// The end of a log, with the checksum that vouches for everything before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tip {
    /// Bytes of all records.
    pub(crate) end: u64,
    /// The number of the last record.
    pub(crate) number: u64,
    /// The checksum of the last record.
    pub(crate) checksum: u32,
}

impl Tip {
    /// Writes the header of the next record, whose payload is in `record` already. Returns the tip
    /// behind it.
    pub(crate) fn seal(self, record: &mut [u8]) -> Tip {
        let number = self.number + 1;
        let length = (record.len() - HEADER_BYTES) as u32;
        record[4..8].copy_from_slice(&length.to_le_bytes());
        record[8..16].copy_from_slice(&number.to_le_bytes());
        let checksum = continued(self.checksum, &record[4..]);
        record[..4].copy_from_slice(&checksum.to_le_bytes());
        Tip {
            end: self.end + record.len() as u64,
            number,
            checksum,
        }
    }

    /// Checks the record at the beginning of `bytes`. Returns the tip behind it.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<Tip, Invalid> {
        let size = size_of_first(bytes).ok_or(Invalid::Torn)?;
        let number = number_of_first(bytes);
        if number != self.number + 1 {
            return Err(Invalid::Number(number));
        }
        if size > bytes.len() {
            return Err(Invalid::Torn);
        }
        let checksum = continued(self.checksum, &bytes[4..size]);
        if checksum != checksum_of_first(bytes) {
            return Err(Invalid::Checksum(number));
        }
        Ok(Tip {
            end: self.end + size as u64,
            number,
            checksum,
        })
    }
}

impl fmt::Display for Tip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records, {} bytes, checksum {:08x}",
            self.number, self.end, self.checksum
        )
    }
}

/// The reason why bytes are not the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// The bytes end within the record.
    Torn,
    /// The bytes are another record, or none.
    Number(u64),
    /// The checksum does not match: these bytes, or earlier ones, differ from the written ones.
    Checksum(u64),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Torn => f.write_str("a record is cut short"),
            Invalid::Number(number) => write!(f, "record {number} is out of order"),
            Invalid::Checksum(number) => write!(f, "the checksum of record {number} is wrong"),
        }
    }
}

/// Returns the bytes of the record at the beginning of `bytes`, with its header, if `bytes` contain
/// the header.
pub(crate) fn size_of_first(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_BYTES)?;
    Some(HEADER_BYTES + u32::from_le_bytes(part(header, 4)) as usize)
}

/// Returns the number of the record at the beginning of `bytes`.
pub(crate) fn number_of_first(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(part(bytes, 8))
}

/// Returns whether `bytes` begin with the first record of a log.
pub(crate) fn begin_the_log(bytes: &[u8]) -> bool {
    size_of_first(bytes).is_some() && number_of_first(bytes) == 1
}

/// Returns the checksum of the record at the beginning of `bytes`.
pub(crate) fn checksum_of_first(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(part(bytes, 0))
}

/// Returns the length of the whole records at the beginning of `bytes`: at most `limit`, or the
/// first record alone if it is longer.
pub(crate) fn whole_records(bytes: &[u8], limit: usize) -> usize {
    let mut whole = 0;
    while let Some(size) = size_of_first(&bytes[whole..]) {
        if whole + size > bytes.len() || whole > 0 && whole + size > limit {
            break;
        }
        whole += size;
    }
    whole
}

/// Continues a CRC-32C: returns that of `bytes` behind those that gave `before`.
fn continued(before: u32, bytes: &[u8]) -> u32 {
    // The state is the checksum without its final inversion.
    let mut digest = Digest::new_with_init_state(Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    digest.finalize() as u32
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tip: Tip, payload: &[u8]) -> (Vec<u8>, Tip) {
        let mut record = vec![0; HEADER_BYTES];
        record.extend_from_slice(payload);
        let tip = tip.seal(&mut record);
        (record, tip)
    }

    #[test]
    fn checksums_are_those_of_crc_32c_and_continue() {
        // RFC 3720, B.4: 32 bytes of zeroes.
        assert_eq!(continued(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(continued(continued(0, &[0; 5]), &[0; 27]), 0x8a91_36aa);
    }

    #[test]
    fn a_sealed_record_is_valid_and_continues_the_log() {
        let (mut log, first) = record(Tip::default(), b"one");
        let (second, last) = record(first, b"");
        log.extend(&second);
        assert_eq!(Tip::default().check(&log), Ok(first));
        assert_eq!(first.check(&log[first.end as usize..]), Ok(last));
        assert_eq!((last.number, last.end), (2, 35));
        assert!(begin_the_log(&log) && !begin_the_log(&second) && !begin_the_log(&log[..15]));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (sound, _) = record(Tip::default(), b"payload");
        for bit in 0..sound.len() * 8 {
            let mut damaged = sound.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Tip::default().check(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_cut_is_found_and_zeroes_are_no_record() {
        let (sound, _) = record(Tip::default(), b"payload");
        for length in 0..sound.len() {
            assert_eq!(Tip::default().check(&sound[..length]), Err(Invalid::Torn));
        }
        assert_eq!(Tip::default().check(&[0; 64]), Err(Invalid::Number(0)));
    }

    #[test]
    fn another_past_is_found() {
        let (_, first) = record(Tip::default(), b"one");
        let (_, other) = record(Tip::default(), b"two");
        let (second, _) = record(first, b"next");
        assert_eq!(other.check(&second), Err(Invalid::Checksum(2)));
    }

    #[test]
    fn only_whole_records_are_counted() {
        let (mut bytes, first) = record(Tip::default(), &[1; 84]);
        bytes.extend(record(first, &[2; 84]).0);
        assert_eq!(whole_records(&bytes, 1000), 200);
        assert_eq!(whole_records(&bytes, 199), 100);
        assert_eq!(whole_records(&bytes, 10), 100, "the first goes alone");
        assert_eq!(whole_records(&bytes[..150], 1000), 100);
        assert_eq!(whole_records(&bytes[..10], 1000), 0);
    }
}
