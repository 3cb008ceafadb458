//! Queries of devices, ports and shared receive queues.

use std::ffi::c_int;
use std::mem::zeroed;

use rustix::io::{self, Errno};

use super::{count, minus_one, status, sys};
use crate::{
    AtomicSupport, DeviceAttributes, Gid, GidEntry, GidType, LinkLayer, LinkSpeed, LinkWidth, Mtu,
    PhysicalState, PortAttributes, PortState, provider::ContextHandle,
};

/// # Safety
/// The contract of [`Provider::query_device`](crate::provider::Provider::query_device).
pub(super) unsafe fn device(context: ContextHandle) -> io::Result<DeviceAttributes> {
    // SAFETY: integers and byte arrays, for which zeros are a value.
    let mut more: sys::ibv_device_attr_ex = unsafe { zeroed() };
    // SAFETY: the caller's contract; `more` is written to.
    let asked = unsafe { sys::ibv_query_device_ex(context.as_ptr(), &raw mut more) };
    if asked != 0 {
        // Without that call the device can be used as far as the plain one tells.
        // SAFETY: as above; zeros are a value.
        unsafe {
            more = zeroed();
            status(sys::ibv_query_device(
                context.as_ptr(),
                &raw mut more.orig_attr,
            ))?;
        }
    }
    let raw = &more.orig_attr;
    let firmware: Vec<u8> = raw
        .fw_ver
        .iter()
        .map(|byte| *byte as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    Ok(DeviceAttributes {
        firmware: String::from_utf8_lossy(&firmware).into_owned(),
        node_guid: u64::from_be(raw.node_guid),
        vendor_id: raw.vendor_id,
        vendor_part_id: raw.vendor_part_id,
        max_queue_pairs: count(raw.max_qp),
        max_queue_pair_requests: count(raw.max_qp_wr),
        max_entries: count(raw.max_sge),
        max_completion_queues: count(raw.max_cq),
        max_completions: count(raw.max_cqe),
        // SAFETY: the context is open (the caller's contract).
        completion_vectors: count(unsafe {
            (*context.as_ptr::<sys::ibv_context>()).num_comp_vectors
        }),
        max_memory_regions: count(raw.max_mr),
        max_memory_region_bytes: raw.max_mr_size,
        max_shared_receive_queues: count(raw.max_srq),
        max_shared_receive_requests: count(raw.max_srq_wr),
        max_shared_receive_entries: count(raw.max_srq_sge),
        max_responder_resources: count(raw.max_qp_rd_atom),
        max_initiator_depth: count(raw.max_qp_init_rd_atom),
        atomics: AtomicSupport::from_raw(raw.atomic_cap),
        ports: raw.phys_port_cnt,
        system_image_guid: u64::from_be(raw.sys_image_guid),
        page_sizes: raw.page_size_cap,
        hardware_version: raw.hw_ver,
        capabilities: raw.device_cap_flags,
        max_read_entries: count(raw.max_sge_rd),
        max_protection_domains: count(raw.max_pd),
        max_total_responder_resources: count(raw.max_res_rd_atom),
        max_windows: count(raw.max_mw),
        max_address_handles: count(raw.max_ah),
        max_multicast_groups: count(raw.max_mcast_grp),
        max_multicast_pairs: count(raw.max_mcast_qp_attach),
        max_total_multicast_pairs: count(raw.max_total_mcast_qp_attach),
        max_pkeys: raw.max_pkeys,
        ack_delay_code: raw.local_ca_ack_delay,
        on_demand_paging: more.odp_caps.general_caps & 1 != 0,
        device_memory_bytes: more.max_dm_size,
        clock_kilohertz: more.hca_core_clock,
        timestamp_mask: more.completion_timestamp_mask,
    })
}

/// # Safety
/// The contract of [`Provider::query_port`](crate::provider::Provider::query_port).
pub(super) unsafe fn port(context: ContextHandle, port: u8) -> io::Result<PortAttributes> {
    // SAFETY: integers, for which zeros are a value.
    let mut raw: sys::ibv_port_attr = unsafe { zeroed() };
    // SAFETY: the caller's contract; `raw` is written to.
    status(unsafe { sys::query_port(context.as_ptr(), port, &raw mut raw) })?;
    let link_layer = LinkLayer::from_raw(raw.link_layer);
    Ok(PortAttributes {
        state: PortState::from_raw(raw.state),
        // A port that is down may have no MTU at all.
        max_mtu: Mtu::from_raw(raw.max_mtu).unwrap_or(Mtu::Bytes256),
        active_mtu: Mtu::from_raw(raw.active_mtu).unwrap_or(Mtu::Bytes256),
        gid_table_len: count(raw.gid_tbl_len),
        pkey_table_len: raw.pkey_tbl_len,
        lid: raw.lid,
        max_message_bytes: raw.max_msg_sz,
        link_layer,
        needs_global_route: link_layer != LinkLayer::InfiniBand || raw.flags & GRH_REQUIRED != 0,
        physical_state: PhysicalState::from_raw(raw.phys_state),
        width: LinkWidth(raw.active_width),
        speed: LinkSpeed(match raw.active_speed_ex {
            // Libraries before rdma-core 53 have the shorter field alone.
            0 => raw.active_speed.into(),
            speed => speed,
        }),
        lid_mask_bits: raw.lmc,
        manager_lid: raw.sm_lid,
        manager_service_level: raw.sm_sl,
        subnet_timeout_code: raw.subnet_timeout,
        init_type_reply: raw.init_type_reply,
        virtual_lanes_code: raw.max_vl_num,
        capabilities: raw.port_cap_flags,
        capabilities2: raw.port_cap_flags2,
        bad_pkeys: raw.bad_pkey_cntr,
        qkey_violations: raw.qkey_viol_cntr,
        flags: raw.flags,
    })
}

/// # Safety
/// The contract of [`Provider::query_gid`](crate::provider::Provider::query_gid).
pub(super) unsafe fn gid(
    context: ContextHandle,
    port: u8,
    index: u32,
) -> io::Result<Option<GidEntry>> {
    // SAFETY: integers, for which zeros are a value.
    let mut raw: sys::ibv_gid_entry = unsafe { zeroed() };
    // SAFETY: the caller's contract; `raw` is written to.
    let asked =
        unsafe { sys::ibv_query_gid_ex(context.as_ptr(), port.into(), index, &raw mut raw, 0) };
    match status(asked) {
        Ok(()) => {}
        // The answers of the kernel and of older libraries for an empty slot.
        Err(Errno::NODATA | Errno::INVAL | Errno::NOENT) => return Ok(None),
        // The answers of a library or kernel that is older than the call (rdma-core 32).
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            // SAFETY: the caller's contract.
            return unsafe { query_gid_in_parts(context, port, index) };
        }
        Err(errno) => return Err(errno),
    }
    // SAFETY: every bit pattern is a value of both fields of the union.
    let gid = Gid(unsafe { raw.gid.raw });
    Ok((!gid.is_empty()).then(|| GidEntry {
        index,
        gid,
        gid_type: GidType::from_raw(raw.gid_type),
        interface_index: raw.ndev_ifindex,
    }))
}

/// Reads a slot in the way of libraries before rdma-core 32: the value, then its type. These
/// libraries do not tell which interface the GID belongs to.
///
/// # Safety
/// The contract of `Provider::query_gid`.
unsafe fn query_gid_in_parts(
    context: ContextHandle,
    port: u8,
    index: u32,
) -> io::Result<Option<GidEntry>> {
    let place = c_int::try_from(index).map_err(|_| Errno::INVAL)?;
    let mut raw = sys::ibv_gid { raw: [0; 16] };
    // SAFETY: the caller's contract; `raw` is written to.
    minus_one(unsafe { sys::ibv_query_gid(context.as_ptr(), port, place, &raw mut raw) })?;
    // SAFETY: every bit pattern is a value of both fields of the union.
    let gid = Gid(unsafe { raw.raw });
    let mut version = 0;
    // SAFETY: the caller's contract; `version` is written to.
    let asked = unsafe { sys::ibv_query_gid_type(context.as_ptr(), port, index, &raw mut version) };
    let gid_type = match (asked, version) {
        (0, sys::constants::IBV_GID_TYPE_SYSFS_ROCE_V2) => GidType::RoceV2,
        (0, _) => GidType::RoceV1,
        _ => GidType::Unknown(u32::MAX),
    };
    Ok((!gid.is_empty()).then_some(GidEntry {
        index,
        gid,
        gid_type,
        interface_index: 0,
    }))
}

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
