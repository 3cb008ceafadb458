//! Partitions of an InfiniBand network, which divide it as VLANs divide an Ethernet.
//!
//! The subnet manager gives each port a table of partition keys. A queue pair names a place of
//! that table, and each of its packets carries the key there; a port drops packets whose key
//! matches none of its own ([InfiniBand Architecture
//! Specification](https://www.infinibandta.org/ibta-specification/), volume 1, section 10.9). The
//! table may change while queue pairs use it, so a place is looked up for each connection.
#![forbid(unsafe_code)]

use std::fmt;

/// A partition key: 15 bits that name the partition, and the uppermost one, which is set where
/// the port is a full member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey(u16);

/// A port's place in a partition.
///
/// See [`ibv_query_pkey(3)`](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The place of its key in the port's table, where queue pairs find it.
    pub index: u16,
    /// The key; `None` if the table cannot be read.
    pub key: Option<PartitionKey>,
}

/// The bit of full members.
const FULL_MEMBER: u16 = 1 << 15;

impl PartitionKey {
    /// Makes a key of the number that tools print, such as `0x8001`; `None` if it names no
    /// partition, as the keys 0 and `0x8000` do.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (number & !FULL_MEMBER != 0).then_some(Self(number))
    }

    /// Returns the number that tools print.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }

    /// Returns whether the port is a full member, which may talk to limited ones too.
    #[must_use]
    pub fn is_full_member(self) -> bool {
        self.0 & FULL_MEMBER != 0
    }

    /// Returns whether both keys name one partition, with any memberships.
    #[must_use]
    pub fn is_of_same_partition(self, other: Self) -> bool {
        (self.0 ^ other.0) & !FULL_MEMBER == 0
    }

    /// Returns whether a port with this key takes packets with the other: both name one
    /// partition, and at least one is a full member's.
    #[must_use]
    pub fn matches(self, other: Self) -> bool {
        self.is_of_same_partition(other) && (self.is_full_member() || other.is_full_member())
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl Partition {
    /// Finds a partition in a port's table; `None` if the port is in none of that name. Among
    /// several places, the first where the port is a full member is taken.
    pub(crate) fn find(wanted: PartitionKey, table: &[u16]) -> Option<Self> {
        let places = table.iter().zip(0_u16..).filter_map(|(&number, index)| {
            let key = PartitionKey::new(number)?;
            key.is_of_same_partition(wanted).then_some((key, index))
        });
        let (key, index) = places.min_by_key(|(key, index)| (!key.is_full_member(), *index))?;
        Some(Self {
            index,
            key: Some(key),
        })
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            Some(key) => write!(f, "{key}")?,
            None => f.write_str("none")?,
        }
        match self.index {
            0 => Ok(()),
            index => write!(f, " at index {index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u16) -> PartitionKey {
        PartitionKey::new(number).unwrap()
    }

    #[test]
    fn keys_match_within_a_partition_that_one_is_a_full_member_of() {
        for (one, other, matches) in [
            (0xffff, 0xffff, true),
            (0x8001, 0x0001, true),
            (0x0001, 0x0001, false),
            (0x8001, 0x8002, false),
            (0x7fff, 0xffff, true),
        ] {
            assert_eq!(key(one).matches(key(other)), matches, "{one:#x} {other:#x}");
            assert_eq!(key(other).matches(key(one)), matches, "{other:#x} {one:#x}");
        }
        assert_eq!([0, 0x8000].map(PartitionKey::new), [None, None]);
    }

    #[test]
    fn a_partition_is_found_by_its_name_and_full_membership_comes_first() {
        let table = [0x7fff, 0x0001, 0, 0x8001, 0x8001, 0x8000];
        for (wanted, found) in [
            (0x0001, Some((3, 0x8001))),
            (0x8001, Some((3, 0x8001))),
            // The port is a limited member only.
            (0xffff, Some((0, 0x7fff))),
            (0x8002, None),
        ] {
            let partition = Partition::find(key(wanted), &table);
            let place = partition.map(|one| (one.index, one.key.unwrap().get()));
            assert_eq!(place, found, "{wanted:#x}");
        }
    }
}
