//! The limits and capabilities of a device, as it describes itself.
#![forbid(unsafe_code)]

use crate::abi::enumeration::enumeration;

/// Those of `ibv_device_attr` and of `ibv_device_attr_ex` that are about objects and verbs of this crate
/// ([`ibv_query_device_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html)).
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
    /// The device pages registered memory on demand (`IBV_ODP_SUPPORT`).
    pub on_demand_paging: bool,
    /// Bytes of memory that the device has; 0 without.
    pub device_memory_bytes: u64,
    /// The ticks of the device's clock in a millisecond; 0 without a clock.
    pub clock_kilohertz: u64,
    /// The bits of a completion's time stamp that count; 0 without time stamps.
    pub timestamp_mask: u64,
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
