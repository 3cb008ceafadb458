//! The C structures that the hot calls exchange with a provider, and the values that devices are
//! told or tell: GIDs, ports, partitions, states of queue pairs, identities of requests.
//!
//! Posting and polling hand these to the provider as they are, so that nothing is
//! translated on the data path and the fake provider can stand where the real one
//! does. Their layout is libibverbs' stable ABI
//! ([`infiniband/verbs.h`](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/verbs.h));
//! `provider/libibverbs/mod.rs` asserts at compile time that it is the bindings' too.
#![forbid(unsafe_code)]

pub(crate) mod gid;
pub(crate) mod partition;
pub(crate) mod port;
pub mod queue_pair_state;
pub(crate) mod work_id;

use std::ffi::c_int;
use std::ptr;

/// `ibv_sge`: one piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of its first byte.
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The key of the memory region that it lies in.
    pub lkey: u32,
}

/// `ibv_send_wr`: a request to a send queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SendWr {
    /// The number that comes back in the completion.
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut SendWr,
    /// The first of `num_sge` entries.
    pub sg_list: *mut Sge,
    /// The number of entries.
    pub num_sge: c_int,
    /// `enum ibv_wr_opcode`.
    pub opcode: u32,
    /// Bits of `enum ibv_send_flags`.
    pub send_flags: u32,
    /// Immediate data, in network byte order.
    pub imm_data: u32,
    /// The remote address of an RDMA operation.
    pub remote_addr: u64,
    /// The key that permits the operation.
    pub rkey: u32,
    /// The end of `rdma` in the union, then the fields that only atomics need.
    pub atomic: [u32; 5],
    /// XRC, memory windows and segmentation, none of which is used here.
    pub unused: [u64; 7],
}

impl SendWr {
    /// An empty request, to fill a table with.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        rkey: 0,
        atomic: [0; 5],
        unused: [0; 7],
    };
}

/// `ibv_recv_wr`: memory for an arriving message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    /// The number that comes back in the completion.
    pub wr_id: u64,
    /// The next request of the list, or null.
    pub next: *mut RecvWr,
    /// The first of `num_sge` entries.
    pub sg_list: *mut Sge,
    /// The number of entries.
    pub num_sge: c_int,
}

impl RecvWr {
    /// An empty request, to fill a table with.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
    };
}

/// `ibv_wc`: the result of one request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    /// The request's `wr_id`.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`; only where `status` is success.
    pub opcode: u32,
    /// The device's own code for the failure.
    pub vendor_err: u32,
    /// Bytes received; only where `status` is success.
    pub byte_len: u32,
    /// Immediate data, in network byte order; only with `WITH_IMM`.
    pub imm_data: u32,
    /// The local queue pair.
    pub qp_num: u32,
    /// The remote queue pair; for datagrams only.
    pub src_qp: u32,
    /// Bits of `enum ibv_wc_flags`.
    pub wc_flags: u32,
    /// The partition's index, of datagrams only.
    pub pkey_index: u16,
    /// The sender's LID, of datagrams only.
    pub slid: u16,
    /// The service level, of datagrams only.
    pub sl: u8,
    /// The path bits of the local LID, of datagrams only.
    pub dlid_path_bits: u8,
}

/// `ibv_poll_cq_attr`: nothing yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PollAttributes {
    /// Mask of the members that are set: none.
    pub comp_mask: u32,
}

/// `enum ibv_send_flags`.
pub mod send_flags {
    /// Wait for earlier RDMA reads.
    pub const FENCE: u32 = 1 << 0;
    /// Make a completion.
    pub const SIGNALED: u32 = 1 << 1;
    /// Wake a receiver that waits for solicited completions only.
    pub const SOLICITED: u32 = 1 << 2;
    /// Copy the data into the request.
    pub const INLINE: u32 = 1 << 3;
}

/// `enum ibv_wr_opcode`, as far as it is used.
pub mod wr_opcode {
    /// RDMA write.
    pub const RDMA_WRITE: u32 = 0;
    /// RDMA write that completes a receive.
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    /// Send.
    pub const SEND: u32 = 2;
    /// Send with immediate data.
    pub const SEND_WITH_IMM: u32 = 3;
}

/// `enum ibv_wc_opcode`, as far as it is used.
pub mod wc_opcode {
    /// A send of this end.
    pub const SEND: u32 = 0;
    /// An RDMA write of this end.
    pub const RDMA_WRITE: u32 = 1;
    /// A message that arrived.
    pub const RECV: u32 = 128;
    /// An RDMA write with immediate data that arrived.
    pub const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// `enum ibv_wc_flags`, as far as it is used.
pub mod wc_flags {
    /// `imm_data` holds immediate data.
    pub const WITH_IMM: u32 = 1 << 1;
}

/// `enum ibv_access_flags`, as far as it is used.
pub mod access_flags {
    /// The device may write on our behalf (receives).
    pub const LOCAL_WRITE: u32 = 1;
    /// The peer may write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// The peer may read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Writes may overtake each other. Libraries and kernels that do not know this bit ignore it
    /// (`IBV_ACCESS_OPTIONAL_FIRST` and above).
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}
