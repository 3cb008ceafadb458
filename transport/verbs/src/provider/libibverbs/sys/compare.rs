//! Compares the declarations with those that `rdma-mummy-sys` generates from rdma-core's header.

use std::any::type_name;
use std::mem::{align_of, offset_of, size_of};

use super::{attributes, constants, functions, structures};
use crate::abi::{self, BindInfo, BindWr, PollAttributes, RecvWr, SendWr, Sge, Wc};

/// The differences that a comparison found, and the number of declarations that it compared.
#[derive(Debug, Default)]
pub(super) struct Found {
    compared: usize,
    differences: Vec<String>,
}

impl Found {
    pub(super) fn number(&mut self, name: &str, what: &str, ours: usize, theirs: usize) {
        self.compared += 1;
        if ours != theirs {
            let line = format!("{name}, {what}: {ours} here, {theirs} in the header");
            self.differences.push(line);
        }
    }

    /// Compares the names of two types. A call that ibex never makes has no type here.
    pub(super) fn types(&mut self, name: &str, what: &str, ours: &str, theirs: &str) {
        self.compared += 1;
        let (ours, theirs) = (plain(ours), plain(theirs));
        if ours != "Unused" && ours != theirs {
            let line = format!("{name}, {what}: {ours} here, {theirs} in the header");
            self.differences.push(line);
        }
    }

    pub(super) fn differences(self) -> Vec<String> {
        assert!(self.compared > 0, "nothing was compared");
        self.differences
    }
}

/// Returns the name of a field's type.
pub(super) fn type_of<S, F>(_: impl FnOnce(&S) -> &F) -> &'static str {
    type_name::<F>()
}

/// Returns a type's name without paths, and with the header's name for what ibex names itself.
fn plain(name: &str) -> String {
    let mut plain = String::new();
    for word in name.split_inclusive(|one: char| !(one.is_alphanumeric() || "_:".contains(one))) {
        let end = word.len() - usize::from(!word.ends_with(|one: char| one.is_alphanumeric()));
        let (path, after) = word.split_at(end);
        let last = path.rsplit("::").next().unwrap_or(path);
        let known = RENAMED.iter().find(|(ours, _)| *ours == last);
        plain.push_str(known.map_or(last, |(_, theirs)| theirs));
        plain.push_str(after);
    }
    plain.replace("[u32; 3]", "ibv_odp_caps__bindgen_ty_1")
}

/// Names here, and those of the generated bindings. `ibv_event_type` is a Rust enumeration there,
/// and a number here, because a kernel may know events that the header does not.
const RENAMED: &[(&str, &str)] = &[
    ("SendWr", "ibv_send_wr"),
    ("RecvWr", "ibv_recv_wr"),
    ("Wc", "ibv_wc"),
    ("PollAttributes", "ibv_poll_cq_attr"),
    ("BindInfo", "ibv_mw_bind_info"),
    ("Sge", "ibv_sge"),
    ("ibv_event_type", "u32"),
];

/// The types of the generated functions, by name.
pub(super) mod declared {
    macro_rules! declared {
        ($($name:ident = $theirs:ident($($any:tt)*);)*) => {
            $(pub(in super::super) fn $name() -> &'static str {
                pointer(|| rdma_sys::$theirs as unsafe extern "C" fn($($any)*) -> _)
            })*
        };
    }

    /// The closure is never called, since the bindings define not all that they declare.
    fn pointer<F>(_: impl FnOnce() -> F) -> &'static str {
        std::any::type_name::<F>()
    }

    declared! {
        ibv_get_device_list = ibv_get_device_list(_);
        ibv_free_device_list = ibv_free_device_list(_);
        ibv_get_device_name = ibv_get_device_name(_);
        ibv_get_device_guid = ibv_get_device_guid(_);
        ibv_open_device = ibv_open_device(_);
        ibv_close_device = ibv_close_device(_);
        ibv_is_fork_initialized = ibv_is_fork_initialized();
        ibv_query_device = ibv_query_device(_, _);
        ibv_query_port = ibv_query_port_compat(_, _, _);
        ibv_query_gid = ibv_query_gid(_, _, _, _);
        _ibv_query_gid_ex = _ibv_query_gid_ex(_, _, _, _, _, _);
        ibv_query_gid_type = ibv_query_gid_type(_, _, _, _);
        ibv_query_pkey = ibv_query_pkey(_, _, _, _);
        ibv_get_async_event = ibv_get_async_event(_, _);
        ibv_ack_async_event = ibv_ack_async_event(_);
        ibv_alloc_pd = ibv_alloc_pd(_);
        ibv_dealloc_pd = ibv_dealloc_pd(_);
        ibv_reg_mr = ibv_reg_mr(_, _, _, _);
        ibv_reg_mr_iova2 = ibv_reg_mr_iova2(_, _, _, _, _);
        ibv_rereg_mr = ibv_rereg_mr(_, _, _, _, _, _);
        ibv_reg_dmabuf_mr = ibv_reg_dmabuf_mr(_, _, _, _, _, _);
        ibv_dereg_mr = ibv_dereg_mr(_);
        ibv_create_comp_channel = ibv_create_comp_channel(_);
        ibv_destroy_comp_channel = ibv_destroy_comp_channel(_);
        ibv_get_cq_event = ibv_get_cq_event(_, _, _);
        ibv_ack_cq_events = ibv_ack_cq_events(_, _);
        ibv_create_cq = ibv_create_cq(_, _, _, _, _);
        ibv_resize_cq = ibv_resize_cq(_, _);
        ibv_destroy_cq = ibv_destroy_cq(_);
        ibv_create_srq = ibv_create_srq(_, _);
        ibv_modify_srq = ibv_modify_srq(_, _, _);
        ibv_query_srq = ibv_query_srq(_, _);
        ibv_destroy_srq = ibv_destroy_srq(_);
        ibv_create_qp = ibv_create_qp(_, _);
        ibv_modify_qp = ibv_modify_qp(_, _, _);
        ibv_query_qp = ibv_query_qp(_, _, _, _);
        ibv_destroy_qp = ibv_destroy_qp(_);
        ibv_create_ah = ibv_create_ah(_, _);
        ibv_destroy_ah = ibv_destroy_ah(_);
        ibv_attach_mcast = ibv_attach_mcast(_, _, _);
        ibv_detach_mcast = ibv_detach_mcast(_, _, _);
    }
}

macro_rules! layout {
    ($found:ident, $ours:ty, $theirs:ident { $($field:ident = $their_field:ident),* $(,)? }) => {
        let name = stringify!($theirs);
        $found.number(name, "size", size_of::<$ours>(), size_of::<rdma_sys::$theirs>());
        $found.number(name, "alignment", align_of::<$ours>(), align_of::<rdma_sys::$theirs>());
        $($found.number(
            name,
            stringify!($field),
            offset_of!($ours, $field),
            offset_of!(rdma_sys::$theirs, $their_field),
        );)*
    };
}

/// The structures of the data path, which have Rust's names.
fn requests() -> Vec<String> {
    let mut found = Found::default();
    layout!(found, Sge, ibv_sge { addr = addr, length = length, lkey = lkey });
    layout!(found, SendWr, ibv_send_wr {
        wr_id = wr_id,
        next = next,
        sg_list = sg_list,
        num_sge = num_sge,
        opcode = opcode,
        send_flags = send_flags,
        imm_data = imm_data_invalidated_rkey_union,
        remote_addr = wr,
        xrc = qp_type,
    });
    let rkey = offset_of!(rdma_sys::ibv_send_wr, wr) + offset_of!(rdma_sys::rdma_t, rkey);
    found.number("ibv_send_wr", "rkey", offset_of!(SendWr, rkey), rkey);
    atomics(&mut found);
    layout!(found, BindWr, ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
        window = mw,
        rkey = rkey,
        info = bind_info,
    });
    layout!(found, BindInfo, ibv_mw_bind_info {
        region = mr,
        address = addr,
        bytes = length,
        access = mw_access_flags,
    });
    // The binding ends the structure.
    let bind = size_of::<rdma_sys::ibv_send_wr>()
        - size_of::<rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1>();
    found.number("ibv_send_wr", "bind_mw", offset_of!(SendWr, bind), bind);
    let wr = offset_of!(rdma_sys::ibv_send_wr, wr);
    let datagram = [
        (
            "ah",
            offset_of!(SendWr, remote_addr),
            offset_of!(rdma_sys::ud_t, ah),
        ),
        (
            "remote_qpn",
            offset_of!(SendWr, rkey),
            offset_of!(rdma_sys::ud_t, remote_qpn),
        ),
        (
            "remote_qkey",
            offset_of!(SendWr, atomic),
            offset_of!(rdma_sys::ud_t, remote_qkey),
        ),
    ];
    for (field, ours, theirs) in datagram {
        found.number("ibv_send_wr", field, ours, wr + theirs);
    }
    layout!(found, RecvWr, ibv_recv_wr {
        wr_id = wr_id,
        next = next,
        sg_list = sg_list,
        num_sge = num_sge,
    });
    layout!(found, Wc, ibv_wc {
        wr_id = wr_id,
        status = status,
        opcode = opcode,
        vendor_err = vendor_err,
        byte_len = byte_len,
        imm_data = imm_data_invalidated_rkey_union,
        qp_num = qp_num,
        src_qp = src_qp,
        wc_flags = wc_flags,
        pkey_index = pkey_index,
        slid = slid,
        sl = sl,
        dlid_path_bits = dlid_path_bits,
    });
    layout!(found, PollAttributes, ibv_poll_cq_attr { comp_mask = comp_mask });
    layout!(found, structures::ibv_gid, ibv_gid { raw = raw, global = global });
    layout!(found, structures::ibv_async_event_element_t, ibv_async_event_element_t {
        cq = cq,
        qp = qp,
        srq = srq,
        port_num = port_num,
    });
    found.differences()
}

/// The places of an atomic's operands and key, which are not those of other requests.
fn atomics(found: &mut Found) {
    use rdma_sys::atomic_t;

    let mut request = SendWr::EMPTY;
    request.set_atomic([0x0102_0304_0506_0708, 0x1112_1314_1516_1718], 0x2122_2324);
    let base = (&raw const request).cast::<u8>();
    let start = offset_of!(rdma_sys::ibv_send_wr, wr);
    // SAFETY: integers within the request.
    let (compare_add, swap, rkey) = unsafe {
        let at = |offset| base.add(start + offset);
        (
            at(offset_of!(atomic_t, compare_add))
                .cast::<u64>()
                .read_unaligned(),
            at(offset_of!(atomic_t, swap))
                .cast::<u64>()
                .read_unaligned(),
            at(offset_of!(atomic_t, rkey))
                .cast::<u32>()
                .read_unaligned(),
        )
    };
    let [first, second] = request.operands();
    found.number(
        "atomic",
        "compare_add",
        first as usize,
        compare_add as usize,
    );
    found.number("atomic", "swap", second as usize, swap as usize);
    found.number(
        "atomic",
        "rkey",
        request.atomic_rkey() as usize,
        rkey as usize,
    );
}

/// The constants of the data path.
fn request_constants() -> Vec<String> {
    use rdma_sys::{ibv_access_flags, ibv_send_flags, ibv_wc_flags, ibv_wc_opcode, ibv_wr_opcode};

    let pairs = [
        (abi::send_flags::FENCE, ibv_send_flags::IBV_SEND_FENCE.0),
        (
            abi::send_flags::SIGNALED,
            ibv_send_flags::IBV_SEND_SIGNALED.0,
        ),
        (
            abi::send_flags::SOLICITED,
            ibv_send_flags::IBV_SEND_SOLICITED.0,
        ),
        (abi::send_flags::INLINE, ibv_send_flags::IBV_SEND_INLINE.0),
        (abi::wr_opcode::RDMA_WRITE, ibv_wr_opcode::IBV_WR_RDMA_WRITE),
        (
            abi::wr_opcode::RDMA_WRITE_WITH_IMM,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        ),
        (abi::wr_opcode::SEND, ibv_wr_opcode::IBV_WR_SEND),
        (
            abi::wr_opcode::SEND_WITH_IMM,
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        ),
        (abi::wr_opcode::RDMA_READ, ibv_wr_opcode::IBV_WR_RDMA_READ),
        (
            abi::wr_opcode::COMPARE_AND_SWAP,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
        ),
        (
            abi::wr_opcode::FETCH_AND_ADD,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        ),
        (
            abi::wr_opcode::LOCAL_INVALIDATE,
            ibv_wr_opcode::IBV_WR_LOCAL_INV,
        ),
        (abi::wr_opcode::BIND_WINDOW, ibv_wr_opcode::IBV_WR_BIND_MW),
        (
            abi::wr_opcode::SEND_WITH_INVALIDATE,
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV,
        ),
        (abi::wc_opcode::RDMA_READ, ibv_wc_opcode::IBV_WC_RDMA_READ),
        (
            abi::wc_opcode::COMPARE_AND_SWAP,
            ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ),
        (
            abi::wc_opcode::FETCH_AND_ADD,
            ibv_wc_opcode::IBV_WC_FETCH_ADD,
        ),
        (abi::wc_opcode::BIND_WINDOW, ibv_wc_opcode::IBV_WC_BIND_MW),
        (
            abi::wc_opcode::LOCAL_INVALIDATE,
            ibv_wc_opcode::IBV_WC_LOCAL_INV,
        ),
        (abi::wc_flags::IP_CSUM_OK, ibv_wc_flags::IBV_WC_IP_CSUM_OK.0),
        (abi::wc_flags::WITH_INV, ibv_wc_flags::IBV_WC_WITH_INV.0),
        (
            abi::access_flags::REMOTE_ATOMIC,
            ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
        ),
        (
            abi::access_flags::WINDOW_BIND,
            ibv_access_flags::IBV_ACCESS_MW_BIND.0,
        ),
        (
            abi::access_flags::ZERO_BASED,
            ibv_access_flags::IBV_ACCESS_ZERO_BASED.0,
        ),
        (
            abi::access_flags::ON_DEMAND,
            ibv_access_flags::IBV_ACCESS_ON_DEMAND.0,
        ),
        (abi::wc_opcode::SEND, ibv_wc_opcode::IBV_WC_SEND),
        (abi::wc_opcode::RDMA_WRITE, ibv_wc_opcode::IBV_WC_RDMA_WRITE),
        (abi::wc_opcode::RECV, ibv_wc_opcode::IBV_WC_RECV),
        (
            abi::wc_opcode::RECV_RDMA_WITH_IMM,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        ),
        (abi::wc_flags::WITH_IMM, ibv_wc_flags::IBV_WC_WITH_IMM.0),
        (
            abi::access_flags::LOCAL_WRITE,
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        ),
        (
            abi::access_flags::REMOTE_WRITE,
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        ),
        (
            abi::access_flags::REMOTE_READ,
            ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        ),
        (
            abi::access_flags::RELAXED_ORDERING,
            ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0,
        ),
    ];
    let mut found = Found::default();
    for (place, (ours, theirs)) in pairs.into_iter().enumerate() {
        found.number(
            "constant",
            &place.to_string(),
            ours as usize,
            theirs as usize,
        );
    }
    found.differences()
}

#[test]
fn declarations_are_those_of_the_header() {
    let none: Vec<String> = Vec::new();
    assert_eq!(structures::differences(), none);
    assert_eq!(attributes::differences(), none);
    assert_eq!(functions::differences(), none);
    assert_eq!(constants::differences(), none);
    assert_eq!(requests(), none);
    assert_eq!(request_constants(), none);
}

#[test]
fn differences_are_found() {
    let mut found = Found::default();
    found.number("one", "size", 8, 16);
    found.types("call", "type", "fn(u8) -> i32", "fn(u32) -> i32");
    found.types("slot", "type", "a::Unused", "fn()");
    let lines = found.differences();
    assert_eq!(
        lines,
        [
            "one, size: 8 here, 16 in the header",
            "call, type: fn(u8) -> i32 here, fn(u32) -> i32 in the header",
        ]
    );
}
