//! The two ends of a connection: the facts that each has of itself and tells the other.
#![forbid(unsafe_code)]

use super::abi::{
    gid::{Gid, GidEntry, GidType},
    partition::{Partition, PartitionKey},
    port::{LinkLayer, Mtu, PortAttributes},
};

/// The number of a connection's first packet, 24 bits.
///
/// Random, so that packets of an earlier connection with the same queue pair number are
/// not taken for this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstSequence(u32);

impl FirstSequence {
    /// Creates the number from random bits, of which the lower 24 count.
    #[must_use]
    pub fn from_random(bits: u32) -> Self {
        Self(bits & 0x00ff_ffff)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Our port and GID as they are at this moment: read for each connection, because
/// indices move with addresses and the MTU with the network interface.
#[derive(Clone, Copy, Debug)]
pub struct LocalPort {
    /// The port's number.
    pub number: u8,
    /// The port's attributes.
    pub attributes: PortAttributes,
    /// The GID that packets come from.
    pub gid: GidEntry,
    /// The partition that packets are of.
    pub partition: Partition,
}

impl LocalPort {
    /// Returns whether packets to `remote` need a global route header: always on Ethernet and
    /// where the port demands it (`IBV_QPF_GRH_REQUIRED`), and on InfiniBand to another subnet.
    /// Within a subnet the LID is enough, and the header would be 40 bytes in each packet.
    pub(crate) fn needs_global_route(&self, remote: &RemoteEndpoint) -> bool {
        self.attributes.needs_global_route || self.is_in_another_subnet(remote)
    }

    pub(crate) fn is_in_another_subnet(&self, remote: &RemoteEndpoint) -> bool {
        self.attributes.link_layer == LinkLayer::InfiniBand
            && self.gid.gid.subnet_prefix() != remote.gid.subnet_prefix()
    }
}

/// The facts about a queue pair that its peer has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEndpoint {
    /// The queue pair's number, 24 bits.
    pub queue_pair: u32,
    /// The number of its first packet.
    pub first_sequence: FirstSequence,
    /// The local identifier of its port; 0 on RoCE.
    pub lid: u16,
    /// The GID of its port.
    pub gid: Gid,
    /// The type of that GID, which says how packets travel.
    pub gid_type: GidType,
    /// The key of its partition; `None` if the peer does not tell it.
    pub partition_key: Option<PartitionKey>,
    /// The largest MTU that its port carries.
    pub mtu: Mtu,
}

impl RemoteEndpoint {
    /// Describes a queue pair of this end, to be sent to a peer.
    #[must_use]
    pub fn of(queue_pair: u32, first_sequence: FirstSequence, local: &LocalPort) -> Self {
        Self {
            queue_pair,
            first_sequence,
            lid: match local.attributes.link_layer {
                LinkLayer::Ethernet => 0,
                _ => local.attributes.lid,
            },
            gid: local.gid.gid,
            gid_type: local.gid.gid_type,
            partition_key: local.partition.key,
            mtu: local.attributes.active_mtu,
        }
    }

    /// Returns the LID that packets from `local` are sent to: the peer's own within a subnet,
    /// and its subnet's floating LID from another one, where its own means another port.
    pub(crate) fn lid_from(&self, local: &LocalPort) -> u16 {
        match local.is_in_another_subnet(self) {
            true => self.gid.floating_lid().unwrap_or(self.lid),
            false => self.lid,
        }
    }
}
