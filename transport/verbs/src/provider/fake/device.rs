//! The description that a fake device gives of itself.
#![forbid(unsafe_code)]

use crate::{
    abi::{
        gid::{Gid, GidEntry, GidType},
        port::{LinkLayer, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortAttributes, PortState},
    },
    provider::{AtomicSupport, DeviceAttributes, Transport},
};

/// A device made of memory.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    /// The device's name.
    pub name: String,
    /// The device's file.
    pub file: String,
    /// The machine still has the device; contexts that were opened before continue to work.
    pub is_listed: bool,
    /// The transport that the device speaks.
    pub transport: Transport,
    /// The device's limits and capabilities.
    pub attributes: DeviceAttributes,
    /// The longest inline send; asking for more is `EINVAL`.
    pub max_inline_bytes: u32,
    /// The device takes immediate data; else requests with some are `EINVAL`.
    pub has_immediate: bool,
    /// The node's 64-bit identifier, as the list of devices has it.
    pub guid: u64,
    /// The device registers dma-bufs.
    pub has_dmabufs: bool,
    /// The device has memory windows.
    pub has_windows: bool,
    /// The device has extended reliable connections.
    pub has_xrc: bool,
    /// Set if its queues hold exactly what is asked for; else sizes are rounded up.
    pub has_exact_queues: bool,
    /// The behaviour of its extended completion queues.
    pub extended: FakeExtended,
    /// The device's clock.
    pub clock: Option<FakeClock>,
    /// The device's ports, from number 1.
    pub ports: Vec<FakePort>,
}

/// The behaviour of extended completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeExtended {
    /// The device has no such queues.
    Absent,
    /// The queues work as the manual says.
    Works,
    /// A batch that is drained shows invented completions afterwards, as soft-RoCE's does before
    /// rdma-core 55.
    DrainsBeyond,
    /// The queues lose completions.
    Loses,
}

/// A device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeClock {
    /// The clock's ticks in a millisecond.
    pub kilohertz: u64,
    /// The bits that it has.
    pub mask: u64,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct FakePort {
    /// The port's attributes.
    pub attributes: PortAttributes,
    /// The port's GIDs; the table is as long as `attributes` say.
    pub gids: Vec<GidEntry>,
    /// The port's partitions.
    pub pkeys: Vec<u16>,
}

/// The capabilities that soft-RoCE tells.
const SOFT_ROCE: u32 = 0x0122_3c76;

impl FakeDevice {
    /// Returns the size that a queue comes out with. Devices round up, soft-RoCE to one less
    /// than a power of two.
    pub(super) fn queue_size(&self, asked: u32) -> u32 {
        match self.has_exact_queues {
            true => asked,
            false => (asked + 1).next_power_of_two() - 1,
        }
    }

    /// A device like soft-RoCE on a network interface with that index and IPv4 address:
    /// one active port, an IPv6 link-local GID and the IPv4-mapped one.
    #[must_use]
    pub fn soft_roce(name: &str, interface_index: u32, address: [u8; 4]) -> Self {
        let gid = |index, address: std::net::IpAddr| GidEntry {
            index,
            gid: Gid::of(address),
            gid_type: GidType::RoceV2,
            interface_index,
        };
        let port = FakePort {
            attributes: PortAttributes {
                state: PortState::Active,
                max_mtu: Mtu::Bytes4096,
                active_mtu: Mtu::Bytes1024,
                gid_table_len: 8,
                pkey_table_len: 1,
                lid: 0,
                max_message_bytes: 1 << 31,
                link_layer: LinkLayer::Ethernet,
                needs_global_route: true,
                physical_state: PhysicalState::LinkUp,
                width: LinkWidth(1),
                speed: LinkSpeed(1),
                lid_mask_bits: 0,
                manager_lid: 0,
                manager_service_level: 0,
                subnet_timeout_code: 0,
                init_type_reply: 0,
                virtual_lanes_code: 1,
                capabilities: 0x0001_0000,
                capabilities2: 0,
                bad_pkeys: 0,
                qkey_violations: 0,
                flags: 0,
            },
            gids: vec![
                gid(0, [0xfe80, 0, 0, 0, 0, 0, 0, 1].into()),
                gid(1, address.into()),
            ],
            pkeys: vec![0xffff],
        };
        Self {
            name: name.to_owned(),
            file: format!("uverbs_{name}"),
            is_listed: true,
            transport: Transport::InfiniBand,
            attributes: DeviceAttributes {
                firmware: "0.0.0".to_owned(),
                node_guid: 0x0002_c903_0000_0001,
                vendor_id: 0x00ff_ffff,
                vendor_part_id: 0,
                max_queue_pairs: 1024,
                max_queue_pair_requests: 4096,
                max_entries: 32,
                max_completion_queues: 1024,
                max_completions: 32767,
                completion_vectors: 2,
                max_memory_regions: 4096,
                max_memory_region_bytes: u64::MAX,
                max_shared_receive_queues: 1024,
                max_shared_receive_requests: 4096,
                max_shared_receive_entries: 27,
                max_responder_resources: 128,
                max_initiator_depth: 128,
                atomics: AtomicSupport::Device,
                ports: 1,
                system_image_guid: 0x0002_c903_0000_0001,
                page_sizes: 0xffff_f000,
                capabilities: SOFT_ROCE,
                max_read_entries: 32,
                max_protection_domains: 1024,
                max_total_responder_resources: 258_048,
                max_windows: 4096,
                max_address_handles: 1024,
                max_multicast_groups: 8192,
                max_multicast_pairs: 56,
                max_total_multicast_pairs: 458_752,
                max_pkeys: 1,
                ack_delay_code: 15,
                ..DeviceAttributes::default()
            },
            guid: 0x0002_c903_0000_0001,
            max_inline_bytes: 512,
            has_immediate: true,
            has_windows: true,
            has_xrc: true,
            has_dmabufs: false,
            has_exact_queues: false,
            extended: FakeExtended::Works,
            clock: None,
            ports: vec![port],
        }
    }

    /// A device like an InfiniBand adapter's: a LID, one GID, no Ethernet.
    #[must_use]
    pub fn infiniband(name: &str, lid: u16) -> Self {
        let mut device = Self::soft_roce(name, 0, [0; 4]);
        device.attributes.vendor_id = 0x02c9;
        let port = &mut device.ports[0];
        port.attributes.lid = lid;
        port.attributes.active_mtu = Mtu::Bytes4096;
        port.attributes.link_layer = LinkLayer::InfiniBand;
        port.attributes.needs_global_route = false;
        port.attributes.gid_table_len = 1;
        port.gids = vec![GidEntry {
            index: 0,
            gid: Gid([
                0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, lid as u8,
            ]),
            gid_type: GidType::InfiniBand,
            interface_index: 0,
        }];
        device
    }
}
