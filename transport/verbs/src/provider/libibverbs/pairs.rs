//! The attributes of queue pairs, to the header's structures and back.

use std::ffi::c_int;
use std::mem::zeroed;

use rustix::io;

use super::{status, sys};
use crate::provider::{PairHandle, QueuePairSizes};
use crate::{
    AddressVector, Gid, GlobalRoute, Mtu, QueriedPair, QueuePairState,
    abi::attribute_mask::AttributeMask, abi::queue_pair_attributes::QueuePairAttributes,
};

/// Translates attributes.
pub(super) fn attributes(attributes: &QueuePairAttributes) -> sys::ibv_qp_attr {
    // SAFETY: integers, for which zeros are a value.
    let mut raw: sys::ibv_qp_attr = unsafe { zeroed() };
    raw.qp_state = attributes.state.to_raw();
    raw.path_mtu = attributes.path_mtu.to_raw();
    raw.rq_psn = attributes.receive_sequence;
    raw.sq_psn = attributes.send_sequence;
    raw.dest_qp_num = attributes.destination;
    raw.qp_access_flags = attributes.access_flags;
    raw.qkey = attributes.q_key;
    raw.ah_attr = address(&attributes.address);
    raw.pkey_index = attributes.pkey_index;
    raw.max_rd_atomic = attributes.initiator_depth;
    raw.max_dest_rd_atomic = attributes.responder_resources;
    raw.min_rnr_timer = attributes.min_rnr_timer;
    raw.port_num = attributes.port;
    raw.timeout = attributes.timeout;
    raw.retry_cnt = attributes.retry_count;
    raw.rnr_retry = attributes.rnr_retry;
    raw
}

/// # Safety
/// The contract of [`Provider::query_pair`](crate::provider::Provider::query_pair).
pub(super) unsafe fn query(pair: PairHandle) -> io::Result<QueriedPair> {
    // SAFETY: integers and pointers, for which zeros are a value.
    let mut raw: sys::ibv_qp_attr = unsafe { zeroed() };
    // SAFETY: as above.
    let mut init: sys::ibv_qp_init_attr = unsafe { zeroed() };
    let mask = AttributeMask::ALL.bits() as c_int;
    // SAFETY: the caller's contract; both are written to.
    status(unsafe { sys::ibv_query_qp(pair.as_ptr(), &raw mut raw, mask, &raw mut init) })?;
    Ok(QueriedPair {
        attributes: QueuePairAttributes {
            state: QueuePairState::from_raw(raw.qp_state),
            port: raw.port_num,
            pkey_index: raw.pkey_index,
            access_flags: raw.qp_access_flags,
            q_key: raw.qkey,
            address: address_of(&raw.ah_attr),
            // A queue pair without a connection may have no MTU.
            path_mtu: Mtu::from_raw(raw.path_mtu).unwrap_or(Mtu::Bytes256),
            destination: raw.dest_qp_num,
            receive_sequence: raw.rq_psn,
            send_sequence: raw.sq_psn,
            responder_resources: raw.max_dest_rd_atomic,
            initiator_depth: raw.max_rd_atomic,
            min_rnr_timer: raw.min_rnr_timer,
            timeout: raw.timeout,
            retry_count: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
        },
        sizes: sizes(&init.cap),
        is_draining: raw.sq_draining != 0,
    })
}

/// Returns the sizes that a queue pair has.
pub(super) fn sizes(cap: &sys::ibv_qp_cap) -> QueuePairSizes {
    QueuePairSizes {
        send_requests: cap.max_send_wr,
        receive_requests: cap.max_recv_wr,
        send_entries: cap.max_send_sge,
        receive_entries: cap.max_recv_sge,
        inline_bytes: cap.max_inline_data,
    }
}

/// Translates an address vector.
pub(super) fn address(vector: &AddressVector) -> sys::ibv_ah_attr {
    // SAFETY: integers, for which zeros are a value.
    let mut raw: sys::ibv_ah_attr = unsafe { zeroed() };
    raw.dlid = vector.lid;
    raw.sl = vector.service_level;
    raw.src_path_bits = vector.path_bits;
    raw.port_num = vector.port;
    if let Some(route) = &vector.route {
        raw.is_global = 1;
        raw.grh.dgid = sys::ibv_gid {
            raw: route.destination.0,
        };
        raw.grh.sgid_index = route.source_index;
        raw.grh.hop_limit = route.hop_limit;
        raw.grh.traffic_class = route.traffic_class;
        raw.grh.flow_label = route.flow_label;
    }
    raw
}

fn address_of(raw: &sys::ibv_ah_attr) -> AddressVector {
    AddressVector {
        lid: raw.dlid,
        route: (raw.is_global != 0).then_some(GlobalRoute {
            // SAFETY: every bit pattern is a value of both fields of the union.
            destination: Gid(unsafe { raw.grh.dgid.raw }),
            source_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
        }),
        service_level: raw.sl,
        path_bits: raw.src_path_bits,
        port: raw.port_num,
    }
}
