//! The structures of `infiniband/verbs.h` that a caller passes: attributes, limits and events, with
//! every field in the header's order.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::timespec;

use super::structures::{
    Unused, ibv_async_event_element_t, ibv_comp_channel, ibv_cq, ibv_gid, ibv_pd, ibv_srq, ibv_xrcd,
};

structures! {
    /// `struct ibv_alloc_dm_attr`.
    ibv_alloc_dm_attr {
        length: usize;
        log_align_req, comp_mask: u32;
    }

    /// `struct ibv_device_attr`.
    ibv_device_attr {
        fw_ver: [c_char; 64];
        node_guid, sys_image_guid, max_mr_size, page_size_cap: u64;
        vendor_id, vendor_part_id, hw_ver: u32;
        max_qp, max_qp_wr: c_int;
        device_cap_flags: c_uint;
        max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom,
        max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom: c_int;
        atomic_cap: c_uint;
        max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp,
        max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq,
        max_srq_wr, max_srq_sge: c_int;
        max_pkeys: u16;
        local_ca_ack_delay, phys_port_cnt: u8;
    }

    /// `struct ibv_odp_caps`.
    ibv_odp_caps {
        general_caps: u64;
        per_transport_caps: [u32; 3];
    }

    /// `struct ibv_tso_caps`.
    ibv_tso_caps {
        max_tso, supported_qpts: u32;
    }

    /// `struct ibv_rss_caps`.
    ibv_rss_caps {
        supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size: u32;
        rx_hash_fields_mask: u64;
        rx_hash_function: u8;
    }

    /// `struct ibv_packet_pacing_caps`.
    ibv_packet_pacing_caps {
        qp_rate_limit_min, qp_rate_limit_max, supported_qpts: u32;
    }

    /// `struct ibv_tm_caps`.
    ibv_tm_caps {
        max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge: u32;
    }

    /// `struct ibv_cq_moderation_caps`.
    ibv_cq_moderation_caps {
        max_cq_count, max_cq_period: u16;
    }

    /// `struct ibv_pci_atomic_caps`.
    ibv_pci_atomic_caps {
        fetch_add, swap, compare_swap: u16;
    }

    /// `struct ibv_device_attr_ex`.
    ibv_device_attr_ex {
        orig_attr: ibv_device_attr;
        comp_mask: u32;
        odp_caps: ibv_odp_caps;
        completion_timestamp_mask, hca_core_clock, device_cap_flags_ex: u64;
        tso_caps: ibv_tso_caps;
        rss_caps: ibv_rss_caps;
        max_wq_type_rq: u32;
        packet_pacing_caps: ibv_packet_pacing_caps;
        raw_packet_caps: u32;
        tm_caps: ibv_tm_caps;
        cq_mod_caps: ibv_cq_moderation_caps;
        max_dm_size: u64;
        pci_atomic_caps: ibv_pci_atomic_caps;
        xrc_odp_caps, phys_port_cnt_ex: u32;
    }

    /// `struct ibv_query_device_ex_input`.
    ibv_query_device_ex_input {
        comp_mask: u32;
    }

    /// `struct ibv_port_attr`.
    ibv_port_attr {
        state, max_mtu, active_mtu: c_uint;
        gid_tbl_len: c_int;
        port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr: u32;
        pkey_tbl_len, lid, sm_lid: u16;
        lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed,
        phys_state, link_layer, flags: u8;
        port_cap_flags2: u16;
        active_speed_ex: u32;
    }

    /// `struct ibv_gid_global_t`.
    ibv_gid_global_t {
        subnet_prefix, interface_id: u64;
    }

    /// `struct ibv_gid_entry`.
    ibv_gid_entry {
        gid: ibv_gid;
        gid_index, port_num, gid_type, ndev_ifindex: u32;
    }

    /// `struct ibv_async_event`.
    ibv_async_event {
        element: ibv_async_event_element_t;
        event_type: c_uint;
    }

    /// `struct ibv_cq_init_attr_ex`.
    ibv_cq_init_attr_ex {
        cqe: u32;
        cq_context: *mut c_void;
        channel: *mut ibv_comp_channel;
        comp_vector: u32;
        wc_flags: u64;
        comp_mask, flags: u32;
        parent_domain: *mut ibv_pd;
    }

    /// `struct ibv_values_ex`.
    ibv_values_ex {
        comp_mask: u32;
        raw_clock: timespec;
    }

    /// `struct ibv_srq_attr`.
    ibv_srq_attr {
        max_wr, max_sge, srq_limit: u32;
    }

    /// `struct ibv_srq_init_attr`.
    ibv_srq_init_attr {
        srq_context: *mut c_void;
        attr: ibv_srq_attr;
    }

    /// `struct ibv_qp_cap`.
    ibv_qp_cap {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data: u32;
    }

    /// `struct ibv_qp_init_attr`.
    ibv_qp_init_attr {
        qp_context: *mut c_void;
        send_cq, recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        cap: ibv_qp_cap;
        qp_type: c_uint;
        sq_sig_all: c_int;
    }

    /// `struct ibv_global_route`.
    ibv_global_route {
        dgid: ibv_gid;
        flow_label: u32;
        sgid_index, hop_limit, traffic_class: u8;
    }

    /// `struct ibv_ah_attr`.
    ibv_ah_attr {
        grh: ibv_global_route;
        dlid: u16;
        sl, src_path_bits, static_rate, is_global, port_num: u8;
    }

    /// `struct ibv_xrcd_init_attr`.
    ibv_xrcd_init_attr {
        comp_mask: u32;
        fd, oflags: c_int;
    }

    /// `struct ibv_tm_cap`.
    ibv_tm_cap {
        max_num_tags, max_ops: u32;
    }

    /// `struct ibv_srq_init_attr_ex`.
    ibv_srq_init_attr_ex {
        srq_context: *mut c_void;
        attr: ibv_srq_attr;
        comp_mask: u32;
        srq_type: c_uint;
        pd: *mut ibv_pd;
        xrcd: *mut ibv_xrcd;
        cq: *mut ibv_cq;
        tm_cap: ibv_tm_cap;
    }

    /// `struct ibv_rx_hash_conf`.
    ibv_rx_hash_conf {
        rx_hash_function, rx_hash_key_len: u8;
        rx_hash_key: *mut u8;
        rx_hash_fields_mask: u64;
    }

    /// `struct ibv_qp_init_attr_ex`.
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void;
        send_cq, recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        cap: ibv_qp_cap;
        qp_type: c_uint;
        sq_sig_all: c_int;
        comp_mask: u32;
        pd: *mut ibv_pd;
        xrcd: *mut ibv_xrcd;
        create_flags: u32;
        max_tso_header: u16;
        rwq_ind_tbl: Unused;
        rx_hash_conf: ibv_rx_hash_conf;
        source_qpn: u32;
        send_ops_flags: u64;
    }

    /// `struct ibv_qp_open_attr`.
    ibv_qp_open_attr {
        comp_mask, qp_num: u32;
        xrcd: *mut ibv_xrcd;
        qp_context: *mut c_void;
        qp_type: c_uint;
    }

    /// `struct ibv_qp_attr`.
    ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state: c_uint;
        qkey, rq_psn, sq_psn, dest_qp_num: u32;
        qp_access_flags: c_uint;
        cap: ibv_qp_cap;
        ah_attr, alt_ah_attr: ibv_ah_attr;
        pkey_index, alt_pkey_index: u16;
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout: u8;
        rate_limit: u32;
    }
}
