//! Messages that both transports carry: the framing of a batch, and a replica's join message.

use ibex_harness::Error;

use crate::log::Tip;

/// Whole records as they lie in the log from an offset on. On the wire, a batch is a header (the
/// offset and the length, 8 bytes each, little-endian) and the records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    /// The log offset of the first record.
    pub(crate) at: u64,
    /// The records; empty at the end of the log.
    pub(crate) records: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Bytes of a batch's header.
    pub(crate) const HEADER_BYTES: usize = 16;

    /// Returns the log offset behind the last record.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.records.len() as u64
    }

    /// Returns the header that goes before the records.
    pub(crate) fn header(&self) -> [u8; Batch::HEADER_BYTES] {
        let mut header = [0; Batch::HEADER_BYTES];
        header[..8].copy_from_slice(&self.at.to_le_bytes());
        header[8..].copy_from_slice(&(self.records.len() as u64).to_le_bytes());
        header
    }

    /// Returns the length of the batch at the beginning of `bytes`, with its header, once the
    /// header has arrived.
    pub(crate) fn size_of_first(bytes: &[u8]) -> Option<usize> {
        let length = bytes.get(8..Self::HEADER_BYTES)?.try_into().ok()?;
        let length = usize::try_from(u64::from_le_bytes(length)).ok()?;
        Self::HEADER_BYTES.checked_add(length)
    }

    /// Parses `bytes`, which must be exactly one batch.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Batch<'a>, Error> {
        if Self::size_of_first(bytes) != Some(bytes.len()) {
            return Err(Error::subject("the primary sent what is no batch"));
        }
        let (header, records) = bytes.split_at(Self::HEADER_BYTES);
        let at = header[..8].try_into().unwrap_or_default();
        Ok(Batch {
            at: u64::from_le_bytes(at),
            records,
        })
    }
}

/// A replica's join message.
#[ibex::message]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// The end of its log.
    pub(crate) end: u64,
    /// The number of its last record.
    pub(crate) number: u64,
    /// The checksum of its whole log.
    pub(crate) checksum: u32,
}

impl Join {
    /// Bytes of the message on a socket.
    pub(crate) const BYTES: usize = 24;

    /// Creates the message of replica `replica` with a log that ends in `tip`.
    pub(crate) fn new(replica: u32, tip: Tip) -> Join {
        Join {
            replica,
            end: tip.end,
            number: tip.number,
            checksum: tip.checksum,
        }
    }

    /// Returns the tip of the replica's log.
    pub(crate) fn tip(&self) -> Tip {
        Tip {
            end: self.end,
            number: self.number,
            checksum: self.checksum,
        }
    }

    /// Encodes the message for a socket.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.replica.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.end.to_le_bytes());
        bytes[16..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Decodes the output of [`to_bytes`](Self::to_bytes).
    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Join {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Join {
            replica: word(0) as u32,
            end: word(8),
            number: word(16),
            checksum: (word(0) >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back() {
        let batch = Batch {
            at: 1 << 40,
            records: b"records",
        };
        let bytes = [&batch.header()[..], batch.records].concat();
        let parsed = Batch::parse(&bytes).unwrap();
        assert_eq!((parsed.at, parsed.records), (batch.at, batch.records));
        assert_eq!(parsed.end(), (1 << 40) + 7);
        assert_eq!(Batch::size_of_first(&bytes[..15]), None);
        assert!(Batch::parse(&bytes[..bytes.len() - 1]).is_err());
        assert_eq!(Batch::size_of_first(&[0xff; 16]), None, "no such length");
    }

    #[test]
    fn a_join_comes_back() {
        let tip = Tip {
            end: 1 << 33,
            number: 77,
            checksum: 0xdead_beef,
        };
        let join = Join::new(3, tip);
        assert_eq!(Join::from_bytes(join.to_bytes()), join);
        assert_eq!(join.tip(), tip);
    }
}
