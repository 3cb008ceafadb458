//! The limits and capabilities of a device, as it describes itself.
#![forbid(unsafe_code)]

use crate::abi::enumeration::enumeration;

/// `ibv_device_attr`
/// ([`ibv_query_device(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html)), and
/// what `ibv_query_device_ex` adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Firmware, by the vendor's numbering.
    pub firmware: String,
    /// The node's 64-bit identifier.
    pub node_guid: u64,
    /// PCI vendor, or all ones for a software device.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// The largest number of queue pairs.
    pub max_queue_pairs: u32,
    /// The largest number of requests in one send or receive queue.
    pub max_queue_pair_requests: u32,
    /// The largest number of scatter entries in one request.
    pub max_entries: u32,
    /// The largest number of completion queues.
    pub max_completion_queues: u32,
    /// The largest number of completions in one completion queue.
    pub max_completions: u32,
    /// Completion vectors, that is interrupts which can serve completion channels
    /// (`ibv_context::num_comp_vectors`).
    pub completion_vectors: u32,
    /// The largest number of memory regions.
    pub max_memory_regions: u32,
    /// The longest memory region.
    pub max_memory_region_bytes: u64,
    /// The largest number of shared receive queues; 0 where there are none.
    pub max_shared_receive_queues: u32,
    /// The largest number of requests in one shared receive queue.
    pub max_shared_receive_requests: u32,
    /// The largest number of scatter entries in a request of a shared receive queue.
    pub max_shared_receive_entries: u32,
    /// The largest number of reads and atomics of a peer that one queue pair serves at a time.
    pub max_responder_resources: u32,
    /// The largest number of reads and atomics that one queue pair has outstanding.
    pub max_initiator_depth: u32,
    /// The accesses that its atomics are atomic against.
    pub atomics: AtomicSupport,
    /// Physical ports, numbered from 1.
    pub ports: u8,
    /// The system's 64-bit identifier, which all nodes of one machine may share.
    pub system_image_guid: u64,
    /// The sizes of pages that regions may have, as the sum of powers of two.
    pub page_sizes: u64,
    /// The version of the hardware.
    pub hardware_version: u32,
    /// Bits of `enum ibv_device_cap_flags`.
    pub capabilities: u32,
    /// The largest number of scatter entries in one read.
    pub max_read_entries: u32,
    /// The largest number of protection domains.
    pub max_protection_domains: u32,
    /// The largest number of the peers' reads and atomics that all queue pairs serve at a time.
    pub max_total_responder_resources: u32,
    /// The largest number of memory windows.
    pub max_windows: u32,
    /// The largest number of address handles.
    pub max_address_handles: u32,
    /// The largest number of multicast groups.
    pub max_multicast_groups: u32,
    /// The largest number of queue pairs in one multicast group.
    pub max_multicast_pairs: u32,
    /// The largest number of queue pairs in all multicast groups.
    pub max_total_multicast_pairs: u32,
    /// The largest number of partition keys of a port.
    pub max_pkeys: u16,
    /// The longest time that the device takes to acknowledge a packet, as a
    /// [`ConnectionSettings::timeout`](crate::ConnectionSettings::timeout) is coded.
    pub ack_delay_code: u8,
    /// The largest number of end-to-end contexts, for reliable datagrams.
    pub max_end_to_end_contexts: u32,
    /// The reads and atomics that one such context serves at a time.
    pub max_end_to_end_resources: u32,
    /// The reads and atomics that one such context has outstanding.
    pub max_end_to_end_depth: u32,
    /// The largest number of domains for reliable datagrams.
    pub max_reliable_datagram_domains: u32,
    /// The largest number of raw IPv6 queue pairs.
    pub max_raw_ipv6_pairs: u32,
    /// The largest number of raw Ethernet queue pairs.
    pub max_raw_ethernet_pairs: u32,
    /// The largest number of fast memory regions.
    pub max_fast_regions: u32,
    /// The mappings of one fast memory region before it has to be flushed.
    pub max_fast_region_maps: u32,
    /// The attributes that `ibv_query_device_ex` adds; all zero where the library or the driver does not
    /// have the call.
    pub extended: ExtendedAttributes,
}

/// The attributes that `ibv_query_device_ex` adds
/// ([`ibv_query_device_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedAttributes {
    /// On-demand paging.
    pub on_demand: OnDemandSupport,
    /// The bits of a completion's time stamp that count; 0 without time stamps.
    pub timestamp_mask: u64,
    /// The ticks of the device's clock in a millisecond; 0 without a clock.
    pub clock_kilohertz: u64,
    /// Bits of `enum ibv_device_cap_flags`, and those above 32.
    pub capabilities: u64,
    /// Segmentation of TCP.
    pub segmentation: Segmentation,
    /// The distribution of received packets by a hash.
    pub hashing: ReceiveHashing,
    /// The largest number of receive work queues.
    pub max_receive_work_queues: u32,
    /// Limits of the rate at which a queue pair sends.
    pub pacing: PacketPacing,
    /// Bits of `enum ibv_raw_packet_caps`.
    pub raw_packet_capabilities: u32,
    /// Tag matching.
    pub tag_matching: TagMatching,
    /// The most completions that a queue's moderation counts; 0 without moderation
    /// ([`CompletionQueue::moderate`](crate::CompletionQueue::moderate)).
    pub max_moderation_count: u16,
    /// The longest time of a queue's moderation, in microseconds.
    pub max_moderation_micros: u16,
    /// Bytes of memory that the device has; 0 without.
    pub device_memory_bytes: u64,
    /// Atomics over PCI.
    pub pci_atomics: PciAtomics,
    /// Physical ports, also where there are more than 255; 0 where only
    /// [`DeviceAttributes::ports`] counts them.
    pub ports: u32,
}

/// `ibv_odp_caps`: what the device can do with memory that is not pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDemandSupport {
    /// Bits of `enum ibv_odp_general_caps`: 1 for on-demand paging, 2 for a region of all memory.
    pub general: u64,
    /// Bits of `enum ibv_odp_transport_cap_bits` for reliable connections.
    pub reliable_connections: u32,
    /// Such bits for unreliable connections.
    pub unreliable_connections: u32,
    /// Such bits for unreliable datagrams.
    pub unreliable_datagrams: u32,
    /// Such bits for XRC.
    pub extended_connections: u32,
}

impl OnDemandSupport {
    /// Returns whether the device has on-demand paging at all (`IBV_ODP_SUPPORT`).
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.general & 1 != 0
    }
}

/// `ibv_tso_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segmentation {
    /// The longest message that the device cuts into segments.
    pub max_bytes: u32,
    /// The types of queue pairs, each the bit of its number.
    pub pair_types: u32,
}

/// `ibv_rss_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveHashing {
    /// The types of queue pairs, each the bit of its number.
    pub pair_types: u32,
    /// The largest number of indirection tables.
    pub max_tables: u32,
    /// The largest number of work queues in one table.
    pub max_table_entries: u32,
    /// Bits of `enum ibv_rx_hash_fields`.
    pub fields: u64,
    /// Bits of `enum ibv_rx_hash_function_flags`.
    pub functions: u8,
}

/// `ibv_packet_pacing_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketPacing {
    /// The lowest rate, in kilobits a second.
    pub min_kilobits: u32,
    /// The highest rate, in kilobits a second; 0 without pacing.
    pub max_kilobits: u32,
    /// The types of queue pairs, each the bit of its number.
    pub pair_types: u32,
}

/// `ibv_tm_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagMatching {
    /// The longest header of a rendezvous message.
    pub max_header_bytes: u32,
    /// The largest number of tagged buffers in a list.
    pub max_tags: u32,
    /// Bits of `enum ibv_tm_cap_flags`.
    pub flags: u32,
    /// The largest number of list operations outstanding.
    pub max_operations: u32,
    /// The largest number of scatter entries of a tagged buffer.
    pub max_entries: u32,
}

/// `ibv_pci_atomic_caps`: the sizes of atomics that the PCI bus completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PciAtomics {
    /// Bits of `enum ibv_pci_atomic_op_size` for fetch and add.
    pub fetch_and_add: u16,
    /// Such bits for swap.
    pub swap: u16,
    /// Such bits for compare and swap.
    pub compare_and_swap: u16,
}

enumeration! {
    /// `enum ibv_atomic_cap`: what a device's atomics are atomic against.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    AtomicSupport(u32), "unknown atomics {}", {
        /// The device has no atomics.
        #[default]
        None = 0, "ATOMIC_NONE";
        /// The atomics of this device.
        Device = 1, "ATOMIC_HCA";
        /// All atomics of the machine, of other devices and of the processor.
        Global = 2, "ATOMIC_GLOB";
    }
}
