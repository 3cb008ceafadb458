//! The 40 bytes in front of a datagram, in which a device puts the route that it came by.
//!
//! They are a global route header (GRH, laid out like an IPv6 header), or, for RoCE v2 over IPv4, 20
//! undefined bytes and an IPv4 header. Which of them it is, is told as
//! [`ibv_create_ah_from_wc(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah_from_wc.3.html)
//! does.
#![forbid(unsafe_code)]

use std::net::Ipv4Addr;

#[cfg(any(test, feature = "fake"))]
use crate::abi::queue_pair_attributes::GlobalRoute;
use crate::{Gid, GidType};

/// The 40 bytes in front of a datagram. They mean something only if the datagram's completion says
/// so ([`DatagramSource::has_header`](crate::DatagramSource::has_header)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalHeader(pub [u8; GlobalHeader::BYTES]);

/// The route that a [`GlobalHeader`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRoute {
    /// The GID of the sender.
    pub source: Gid,
    /// The GID that the datagram was sent to: one of the port's, or a multicast group.
    pub destination: Gid,
    /// The type of both GIDs.
    pub gid_type: GidType,
    /// The number of routers that the packet might still have passed.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow, 20 bits; 0 over IPv4.
    pub flow_label: u32,
}

impl GlobalHeader {
    /// The length of the header. Each receive of a datagram has to have room for it.
    pub const BYTES: usize = 40;

    /// Returns the route; `None` if the bytes are no header that this crate knows.
    #[must_use]
    pub fn route(&self) -> Option<HeaderRoute> {
        let ipv4 = self.ipv4();
        let is_ipv6 = self.0[0] >> 4 == 6;
        let says_ipv4 = ipv4[0] >> 4 == 4;
        // The first half is undefined before an IPv4 header, so it may look like version 6.
        match is_ipv6 {
            true if ipv4[0] == IPV4_START && checksum(ipv4) == 0 => Some(self.ipv4_route()),
            true => self.ipv6_route(),
            false => says_ipv4.then(|| self.ipv4_route()),
        }
    }

    fn ipv4(&self) -> &[u8; 20] {
        self.0.last_chunk().expect("20 of 40 bytes")
    }

    fn ipv4_route(&self) -> HeaderRoute {
        let ipv4 = self.ipv4();
        let gid = |at: usize| {
            let [a, b, c, d] = [ipv4[at], ipv4[at + 1], ipv4[at + 2], ipv4[at + 3]];
            Gid::of(Ipv4Addr::new(a, b, c, d).into())
        };
        HeaderRoute {
            source: gid(12),
            destination: gid(16),
            gid_type: GidType::RoceV2,
            hop_limit: ipv4[8],
            traffic_class: ipv4[1],
            flow_label: 0,
        }
    }

    fn ipv6_route(&self) -> Option<HeaderRoute> {
        let [a, b, c, d, _, _, next, hop_limit, ..] = self.0;
        let first = u32::from_be_bytes([a, b, c, d]);
        let gid = |at: usize| Gid(std::array::from_fn(|byte| self.0[at + byte]));
        Some(HeaderRoute {
            source: gid(8),
            destination: gid(24),
            gid_type: match next {
                NEXT_UDP => GidType::RoceV2,
                NEXT_INFINIBAND => GidType::InfiniBand,
                _ => return None,
            },
            hop_limit,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0x000f_ffff,
        })
    }

    /// Makes the header of a datagram over IPv4, as devices do.
    #[cfg(any(test, feature = "fake"))]
    pub(crate) fn of_ipv4(source: Gid, route: &GlobalRoute, payload: usize) -> Self {
        let mut bytes = [0; Self::BYTES];
        let ipv4 = &mut bytes[20..];
        ipv4[0] = IPV4_START;
        ipv4[1] = route.traffic_class;
        let length = (20 + UDP_AND_TRANSPORT + payload) as u16;
        ipv4[2..4].copy_from_slice(&length.to_be_bytes());
        ipv4[8] = route.hop_limit;
        ipv4[9] = NEXT_UDP;
        ipv4[12..16].copy_from_slice(&source.0[12..]);
        ipv4[16..20].copy_from_slice(&route.destination.0[12..]);
        let sum = checksum(ipv4.first_chunk().expect("20 bytes"));
        ipv4[10..12].copy_from_slice(&sum.to_be_bytes());
        Self(bytes)
    }

    /// Makes the header of a datagram over IPv6 or InfiniBand, as devices do.
    #[cfg(any(test, feature = "fake"))]
    pub(crate) fn of_ipv6(source: Gid, route: &GlobalRoute, next: u8, payload: usize) -> Self {
        let mut bytes = [0; Self::BYTES];
        let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        let length = (UDP_AND_TRANSPORT + payload) as u16;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        bytes[6] = next;
        bytes[7] = route.hop_limit;
        bytes[8..24].copy_from_slice(&source.0);
        bytes[24..].copy_from_slice(&route.destination.0);
        Self(bytes)
    }
}

/// Returns the checksum of an IPv4 header ([RFC 1071](https://www.rfc-editor.org/rfc/rfc1071)); 0 for
/// a header that has its checksum in it.
fn checksum(header: &[u8; 20]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Version 4, and a header of five words: RoCE v2 has no options.
const IPV4_START: u8 = 0x45;
/// The protocol UDP, as RoCE v2.
pub(crate) const NEXT_UDP: u8 = 17;
/// The InfiniBand transport (`IB_NEXT_HDR`), as InfiniBand and RoCE v1.
pub(crate) const NEXT_INFINIBAND: u8 = 0x1b;
/// The headers of UDP, of the transport and of a datagram, and the checksum of RoCE.
#[cfg(any(test, feature = "fake"))]
const UDP_AND_TRANSPORT: usize = 8 + 12 + 8 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: &str) -> GlobalRoute {
        GlobalRoute {
            destination: Gid::of(destination.parse().unwrap()),
            source_index: 1,
            hop_limit: 64,
            traffic_class: 0x68,
            flow_label: 0x1_2345,
        }
    }

    #[test]
    fn init_ah_from_wc_reads_an_ipv4_header_behind_undefined_bytes() {
        let source = Gid::of("192.0.2.1".parse().unwrap());
        let mut header = GlobalHeader::of_ipv4(source, &route("192.0.2.2"), 100);
        // What comes before it may look like anything, also like IPv6.
        for undefined in [0, 0x60, 0x45] {
            header.0[0] = undefined;
            let notified = header.route().unwrap();
            assert_eq!(notified.source, source);
            assert_eq!(notified.destination, route("192.0.2.2").destination);
            assert_eq!(notified.gid_type, GidType::RoceV2);
            assert_eq!((notified.hop_limit, notified.traffic_class), (64, 0x68));
            assert_eq!(notified.flow_label, 0);
        }
    }

    #[test]
    fn init_ah_from_wc_reads_a_global_route_header() {
        let source = Gid::of("2001:db8::1".parse().unwrap());
        for (next, gid_type) in [
            (NEXT_UDP, GidType::RoceV2),
            (NEXT_INFINIBAND, GidType::InfiniBand),
        ] {
            let header = GlobalHeader::of_ipv6(source, &route("2001:db8::2"), next, 100);
            let notified = header.route().unwrap();
            let expected = HeaderRoute {
                source,
                destination: route("2001:db8::2").destination,
                gid_type,
                hop_limit: 64,
                traffic_class: 0x68,
                flow_label: 0x1_2345,
            };
            assert_eq!(notified, expected);
        }
        // A word of the destination's address that looks like the start of an IPv4 header.
        let mut header = GlobalHeader::of_ipv6(source, &route("2001:db8::2"), NEXT_UDP, 100);
        header.0[20] = IPV4_START;
        assert_eq!(
            header.route().unwrap().destination,
            route("2001:db8::2").destination
        );
    }

    #[test]
    fn init_ah_from_wc_refuses_what_is_no_header() {
        assert_eq!(GlobalHeader([0; 40]).route(), None);
        assert_eq!(GlobalHeader([0xff; 40]).route(), None);
        let source = Gid::of("2001:db8::1".parse().unwrap());
        let tcp = GlobalHeader::of_ipv6(source, &route("2001:db8::2"), 6, 0);
        assert_eq!(tcp.route(), None);
    }
}
