//! The structures of `infiniband/verbs.h` that the library makes, with every field in the header's
//! order, neighbours of one type together.
//!
//! A call that ibex never makes is a slot of the type [`Unused`].

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::attributes::*;
use crate::abi::{BindInfo, PollAttributes, RecvWr, SendWr, Wc};

/// Declares structures, and a comparison of each with the one that is generated from the header.
macro_rules! structures {
    ($($(#[$attribute:meta])* $name:ident { $($($field:ident),+: $type:ty;)* })*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(in super::super) struct $name {
                $($(pub(in super::super) $field: $type,)+)*
            }
        )*

        /// Returns each difference from the structures that `rdma-sys` generates.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(super) fn differences() -> Vec<String> {
            use std::mem::{align_of, offset_of, size_of};

            use super::compare::{Found, type_of};

            let mut found = Found::default();
            $({
                type Theirs = rdma_sys::$name;
                let name = stringify!($name);
                found.number(name, "size", size_of::<$name>(), size_of::<Theirs>());
                found.number(name, "alignment", align_of::<$name>(), align_of::<Theirs>());
                $($(
                    let field = stringify!($field);
                    let (ours, theirs) =
                        (offset_of!($name, $field), offset_of!(Theirs, $field));
                    found.number(name, field, ours, theirs);
                    let ours = type_of(|one: &$name| &one.$field);
                    let theirs = type_of(|one: &Theirs| &one.$field);
                    found.types(name, field, ours, theirs);
                )+)*
            })*
            found.differences()
        }
    };
}

/// A slot for a call that ibex never makes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(in super::super) struct Unused(*const c_void);

/// What `ibv_query_port` writes to: the start of `ibv_port_attr`, up to `link_layer`.
#[repr(C)]
pub(in super::super) struct _compat_ibv_port_attr {
    _unused: [u8; 0],
}

/// `union ibv_gid`: a GID.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in super::super) union ibv_gid {
    pub(in super::super) raw: [u8; 16],
    pub(in super::super) global: ibv_gid_global_t,
}

/// The object that an asynchronous event is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in super::super) union ibv_async_event_element_t {
    pub(in super::super) cq: *mut ibv_cq,
    pub(in super::super) qp: *mut ibv_qp,
    pub(in super::super) srq: *mut ibv_srq,
    pub(in super::super) port_num: c_int,
}

structures! {
    /// A device in the list.
    ibv_device {
        _ops: _ibv_device_ops;
        node_type, transport_type: c_int;
        name, dev_name: [c_char; 64];
        dev_path, ibdev_path: [c_char; 256];
    }

    /// What an old library kept of a driver.
    _ibv_device_ops {
        _dummy1, _dummy2: Unused;
    }

    /// The calls of a driver that the header's inline functions reach.
    ibv_context_ops {
        _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
        _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr: Unused;
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>;
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>;
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>;
        _compat_create_cq: Unused;
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut Wc) -> c_int>;
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>;
        _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq,
        _compat_modify_srq, _compat_query_srq, _compat_destroy_srq: Unused;
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>;
        _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp: Unused;
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut SendWr, *mut *mut SendWr) -> c_int>;
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>;
        _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast,
        _compat_async_event: Unused;
    }

    /// An open device.
    ibv_context {
        device: *mut ibv_device;
        ops: ibv_context_ops;
        cmd_fd, async_fd, num_comp_vectors: c_int;
        mutex: pthread_mutex_t;
        abi_compat: *mut c_void;
    }

    /// What lies before an open device if its library knows extended calls (`verbs_get_ctx`).
    verbs_context {
        dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah, alloc_dmah: Unused;
        query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>;
        advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters,
        destroy_counters: Unused;
        reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>;
        alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>;
        free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>;
        modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit,
        alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
        create_rwq_ind_table, destroy_wq, modify_wq, create_wq: Unused;
        query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>;
        create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>;
        priv_: Unused;
        query_device_ex: Option<unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize) -> c_int>;
        ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1: Unused;
        open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>;
        create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>;
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>;
        create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>;
        open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>;
        close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>;
        _ABI_placeholder3: u64;
        sz: usize;
        context: ibv_context;
    }

    /// A protection domain.
    ibv_pd {
        context: *mut ibv_context;
        handle: u32;
    }

    /// A memory region.
    ibv_mr {
        context: *mut ibv_context;
        pd: *mut ibv_pd;
        addr: *mut c_void;
        length: usize;
        handle, lkey, rkey: u32;
    }

    /// Memory of a device.
    ibv_dm {
        context: *mut ibv_context;
        memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>;
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>;
        comp_mask, handle: u32;
    }

    /// A memory window.
    ibv_mw {
        context: *mut ibv_context;
        pd: *mut ibv_pd;
        rkey, handle: u32;
        type_: c_uint;
    }

    /// `struct ibv_mw_bind`.
    ibv_mw_bind {
        wr_id: u64;
        send_flags: c_uint;
        bind_info: BindInfo;
    }

    /// A completion channel.
    ibv_comp_channel {
        context: *mut ibv_context;
        fd, refcnt: c_int;
    }

    /// A completion queue.
    ibv_cq {
        context: *mut ibv_context;
        channel: *mut ibv_comp_channel;
        cq_context: *mut c_void;
        handle: u32;
        cqe: c_int;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        comp_events_completed, async_events_completed: u32;
    }

    /// An extended completion queue.
    ibv_cq_ex {
        context: *mut ibv_context;
        channel: *mut ibv_comp_channel;
        cq_context: *mut c_void;
        handle: u32;
        cqe: c_int;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        comp_events_completed, async_events_completed, comp_mask: u32;
        status: c_uint;
        wr_id: u64;
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut PollAttributes) -> c_int>;
        next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>;
        end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>;
        read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>;
        read_vendor_err, read_byte_len, read_imm_data,
        read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>;
        read_src_qp: Unused;
        read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>;
        read_slid, read_sl, read_dlid_path_bits: Unused;
        read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>;
        read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns: Unused;
    }

    /// A shared receive queue.
    ibv_srq {
        context: *mut ibv_context;
        srq_context: *mut c_void;
        pd: *mut ibv_pd;
        handle: u32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }

    /// A queue pair.
    ibv_qp {
        context: *mut ibv_context;
        qp_context: *mut c_void;
        pd: *mut ibv_pd;
        send_cq, recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        handle, qp_num: u32;
        state, qp_type: c_uint;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }

    /// A domain of extended connections.
    ibv_xrcd {
        context: *mut ibv_context;
    }

    /// An address handle.
    ibv_ah {
        context: *mut ibv_context;
        pd: *mut ibv_pd;
        handle: u32;
    }
}
