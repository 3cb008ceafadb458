//! The message by which a replica joins, over either transport.

use crate::log::Tip;

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
