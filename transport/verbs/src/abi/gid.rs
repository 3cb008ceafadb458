//! Global identifiers (GIDs), by which peers address a port, and which kind is best.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::enumeration::enumeration;

/// A GID of 128 bits; on RoCE an IPv6 address, or an IPv4 address mapped into one
/// ([RFC 4291](https://www.rfc-editor.org/rfc/rfc4291#section-2.5.5.2)).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID that RoCE gives to an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }

    /// Returns whether all bits are zero, as in an empty slot of a port's table.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the prefix of the InfiniBand subnet that its port is in.
    #[must_use]
    pub fn subnet_prefix(self) -> u64 {
        let Self([a, b, c, d, e, f, g, h, ..]) = self;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns the LID by which other InfiniBand subnets reach its subnet, where routers have
    /// given it one (a *floating* LID). Site-local prefixes `fec0:0:FLID::` name it; UCX reads
    /// it in the same way (src/uct/ib/base/ib_iface.c).
    #[must_use]
    pub fn floating_lid(self) -> Option<u16> {
        match self.0 {
            [0xfe, 0xc0, 0, 0, high, low, ..] if (high, low) != (0, 0) => {
                Some(u16::from_be_bytes([high, low]))
            }
            _ => None,
        }
    }

    /// Returns whether it is the GID of a multicast group (`rdma_is_multicast_addr`,
    /// [include/rdma/ib_addr.h](https://github.com/torvalds/linux/blob/master/include/rdma/ib_addr.h)).
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff
            || matches!(self.scope(), GidScope::Ipv4(address) if address.is_multicast())
    }

    /// Returns the kind of address in the GID.
    #[must_use]
    pub fn scope(self) -> GidScope {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) if v4.is_unspecified() => GidScope::Empty,
            Some(v4) => GidScope::Ipv4(v4),
            None if v6.is_unspecified() => GidScope::Empty,
            None if v6.is_unicast_link_local() => GidScope::LinkLocal,
            None => GidScope::Global,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of address in a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidScope {
    /// The slot of the table is empty.
    Empty,
    /// An IPv4 address, mapped into IPv6.
    Ipv4(Ipv4Addr),
    /// An IPv6 address, or an InfiniBand GID, that is routed.
    Global,
    /// An address of one link. On InfiniBand all GIDs with the default prefix look like one.
    LinkLocal,
}

enumeration! {
    /// The way in which packets with a GID travel. Two ends with different kinds cannot talk. RoCE is
    /// annexes A16 and A17 of the [InfiniBand Architecture
    /// Specification](https://www.infinibandta.org/ibta-specification/), volume 1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    GidType(u32), "unknown GID type {}", {
        /// Packets of an InfiniBand network.
        InfiniBand = 0, "InfiniBand";
        /// RoCE version 1: an Ethernet type of its own.
        RoceV1 = 1, "RoCE v1";
        /// RoCE version 2: UDP port 4791.
        RoceV2 = 2, "RoCE v2";
    }
}

/// An occupied slot of a port's GID table. Slots move when addresses come and go, so an index
/// is looked up for every connection and never kept.
///
/// See [`ibv_query_gid_table(3)`](https://man7.org/linux/man-pages/man3/ibv_query_gid_table.3.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The slot's place in the table.
    pub index: u32,
    /// The identifier in the slot.
    pub gid: Gid,
    /// The way in which its packets travel.
    pub gid_type: GidType,
    /// The network interface that the slot belongs to, by index; 0 if it has none.
    pub interface_index: u32,
}

impl GidEntry {
    /// A connection names its GID by 8 bits (`ibv_global_route::sgid_index`).
    pub const LAST_INDEX: u32 = u8::MAX as u32;

    /// Returns the entry's rank, the smaller the better; `None` if it cannot be used.
    ///
    /// RoCE v2 comes before v1, because only v2 is routed. Within v2, the IPv4-mapped GID comes
    /// first, because it is the address that operators configured and peers resolve.
    #[must_use]
    pub fn preference(&self) -> Option<u8> {
        if self.index > Self::LAST_INDEX {
            return None;
        }
        Some(match (self.gid_type, self.gid.scope()) {
            (GidType::Unknown(_), _) | (_, GidScope::Empty) => return None,
            (GidType::InfiniBand, _) => 0,
            (GidType::RoceV2, GidScope::Ipv4(_)) => 1,
            (GidType::RoceV2, GidScope::Global) => 2,
            (GidType::RoceV2, GidScope::LinkLocal) => 3,
            (GidType::RoceV1, GidScope::Ipv4(_)) => 4,
            (GidType::RoceV1, GidScope::Global) => 5,
            (GidType::RoceV1, GidScope::LinkLocal) => 6,
        })
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {} ({})", self.index, self.gid, self.gid_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(gid_type: GidType, address: &str) -> GidEntry {
        GidEntry {
            index: 0,
            gid: Gid::of(address.parse().unwrap()),
            gid_type,
            interface_index: 0,
        }
    }

    #[test]
    fn an_address_and_its_gid_tell_the_same() {
        let gid = Gid::of("192.0.2.1".parse().unwrap());
        assert_eq!(gid.scope(), GidScope::Ipv4(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!(gid.to_string(), "::ffff:192.0.2.1");
        assert_eq!(
            Gid::of("2001:db8::1".parse().unwrap()).scope(),
            GidScope::Global
        );
        assert_eq!(
            Gid::of("fe80::1".parse().unwrap()).scope(),
            GidScope::LinkLocal
        );
        assert_eq!(Gid::default().scope(), GidScope::Empty);
        assert!(Gid::default().is_empty() && !gid.is_empty());
    }

    #[test]
    fn version_two_with_an_ipv4_address_is_preferred() {
        let order = [
            entry(GidType::RoceV2, "192.0.2.1"),
            entry(GidType::RoceV2, "2001:db8::1"),
            entry(GidType::RoceV2, "fe80::1"),
            entry(GidType::RoceV1, "192.0.2.1"),
            entry(GidType::RoceV1, "2001:db8::1"),
            entry(GidType::RoceV1, "fe80::1"),
        ];
        let ranks: Vec<_> = order
            .iter()
            .map(|entry| entry.preference().unwrap())
            .collect();
        assert!(ranks.is_sorted_by(|one, next| one < next), "{ranks:?}");
    }

    #[test]
    fn an_empty_or_unknown_gid_cannot_be_used() {
        assert_eq!(entry(GidType::RoceV2, "::").preference(), None);
        assert_eq!(entry(GidType::Unknown(9), "192.0.2.1").preference(), None);
        let mut last = entry(GidType::RoceV2, "192.0.2.1");
        last.index = 255;
        assert!(last.preference().is_some());
        last.index = 256;
        assert_eq!(last.preference(), None);
        assert_eq!(GidType::from_raw(9), GidType::Unknown(9));
    }
}
