//! The C structures that the hot calls exchange with a provider, and the values that devices are
//! told or tell: GIDs, ports, partitions, states of queue pairs, identities of requests, keys, and
//! the statuses of completions.
//!
//! Posting and polling hand these to the provider as they are, so that nothing is
//! translated on the data path and the fake provider can stand where the real one
//! does. Their layout is libibverbs' stable ABI
//! ([`infiniband/verbs.h`](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/verbs.h));
//! a test with the feature `rdma-sys` compares it with the header's.
#![forbid(unsafe_code)]

pub(crate) mod async_event;
pub mod attribute_mask;
pub(crate) mod completion_polling;
pub(crate) mod completion_status;
pub(crate) mod enumeration;
pub(crate) mod fork_status;
pub(crate) mod gid;
#[cfg(feature = "all")]
pub(crate) mod global_header;
pub(crate) mod partition;
pub(crate) mod port;
pub mod queue_pair_attributes;
pub(crate) mod queue_pair_kind;
pub mod queue_pair_state;
pub mod remote_address;
pub(crate) mod transport;
pub(crate) mod work_id;

use std::ffi::{c_int, c_void};
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
///
/// See [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
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
    /// Immediate data, in network byte order, or the key that the message invalidates.
    pub imm_data: u32,
    /// The remote address of an RDMA operation.
    pub remote_addr: u64,
    /// The key that permits the operation; of an atomic the first half of
    /// [`operands`](Self::operands).
    pub rkey: u32,
    /// The rest of an atomic's operands, and its key ([`set_atomic`](Self::set_atomic)).
    pub atomic: [u32; 5],
    /// The number of the shared receive queue of an XRC request, and padding.
    pub xrc: [u32; 2],
    /// The binding of a memory window of type 2.
    pub bind: BindWr,
}

/// The binding of a memory window within `ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BindWr {
    /// The window, `ibv_mw`.
    pub window: *mut c_void,
    /// The key that the window gets.
    pub rkey: u32,
    /// The region, and the part of it.
    pub info: BindInfo,
}

/// `ibv_mw_bind_info`: a part of a memory region, for a window.
///
/// See [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BindInfo {
    /// The region, `ibv_mr`.
    pub region: *mut c_void,
    /// The address of the first byte.
    pub address: u64,
    /// The length in bytes; 0 unbinds a window of type 1.
    pub bytes: u64,
    /// Bits of `enum ibv_access_flags`.
    pub access: u32,
}

impl BindInfo {
    /// No part of any region.
    pub const EMPTY: Self = Self {
        region: ptr::null_mut(),
        address: 0,
        bytes: 0,
        access: 0,
    };
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
        xrc: [0; 2],
        bind: BindWr {
            window: ptr::null_mut(),
            rkey: 0,
            info: BindInfo::EMPTY,
        },
    };

    /// Sets the operands and the key of an atomic, which lie where other requests have the key.
    pub fn set_atomic(&mut self, operands: [u64; 2], rkey: u32) {
        let [first, second] = operands.map(halves);
        self.rkey = first[0];
        self.atomic = [first[1], second[0], second[1], rkey, 0];
    }

    /// Sets the receiver of a datagram, which lies where other requests have the remote address and
    /// the key.
    pub fn set_datagram(&mut self, address: *mut c_void, queue_pair: u32, q_key: u32) {
        self.remote_addr = address.expose_provenance() as u64;
        self.rkey = queue_pair;
        self.atomic[0] = q_key;
    }

    /// Returns the receiver of a datagram: the address handle, the queue pair and its Q_Key.
    #[must_use]
    pub fn datagram(&self) -> (*mut c_void, u32, u32) {
        let address = ptr::with_exposed_provenance_mut(self.remote_addr as usize);
        (address, self.rkey, self.atomic[0])
    }

    /// Returns the operands of an atomic: what to compare with or to add, and what to store.
    #[must_use]
    pub fn operands(&self) -> [u64; 2] {
        [
            whole([self.rkey, self.atomic[0]]),
            whole([self.atomic[1], self.atomic[2]]),
        ]
    }

    /// Returns the key that permits an atomic.
    #[must_use]
    pub fn atomic_rkey(&self) -> u32 {
        self.atomic[3]
    }
}

/// Returns the words of a number in the order in which they lie in memory.
fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes)
}

/// Returns the number that these words are in memory.
fn whole(halves: [u32; 2]) -> u64 {
    let [[a, b, c, d], [e, f, g, h]] = halves.map(u32::to_ne_bytes);
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// `ibv_recv_wr`: memory for an arriving message.
///
/// See [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
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
///
/// See [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html).
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
    /// Immediate data, in network byte order, with `WITH_IMM`; with `WITH_INV` the key that the
    /// message has invalidated.
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
    /// RDMA read.
    pub const RDMA_READ: u32 = 4;
    /// Atomic compare and swap.
    pub const COMPARE_AND_SWAP: u32 = 5;
    /// Atomic fetch and add.
    pub const FETCH_AND_ADD: u32 = 6;
    /// Invalidate a key of this end.
    pub const LOCAL_INVALIDATE: u32 = 7;
    /// Bind a memory window of type 2.
    pub const BIND_WINDOW: u32 = 8;
    /// Send that invalidates a key of the peer.
    pub const SEND_WITH_INVALIDATE: u32 = 9;
}

/// `enum ibv_wc_opcode`, as far as it is used.
pub mod wc_opcode {
    /// A send of this end.
    pub const SEND: u32 = 0;
    /// An RDMA write of this end.
    pub const RDMA_WRITE: u32 = 1;
    /// An RDMA read of this end.
    pub const RDMA_READ: u32 = 2;
    /// A compare and swap of this end.
    pub const COMPARE_AND_SWAP: u32 = 3;
    /// A fetch and add of this end.
    pub const FETCH_AND_ADD: u32 = 4;
    /// A memory window of this end is bound.
    pub const BIND_WINDOW: u32 = 5;
    /// A key of this end is invalid.
    pub const LOCAL_INVALIDATE: u32 = 6;
    /// A message that arrived.
    pub const RECV: u32 = 128;
    /// An RDMA write with immediate data that arrived.
    pub const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// `enum ibv_wc_flags`, as far as it is used.
pub mod wc_flags {
    /// The route of the datagram is in front of its bytes.
    pub const GRH: u32 = 1 << 0;
    /// `imm_data` holds immediate data.
    pub const WITH_IMM: u32 = 1 << 1;
    /// `imm_data` holds the key that the message has invalidated.
    pub const WITH_INV: u32 = 1 << 3;
    /// The checksum of an IP packet, which datagrams alone have, is right. Soft-RoCE's kernel sets this
    /// bit in place of [`WITH_INV`]: it is `IB_WC_WITH_INVALIDATE` there
    /// ([include/rdma/ib_verbs.h](https://github.com/torvalds/linux/blob/master/include/rdma/ib_verbs.h)).
    pub const IP_CSUM_OK: u32 = 1 << 2;
}

/// `enum ibv_access_flags`, as far as it is used.
pub mod access_flags {
    /// The device may write on our behalf (receives).
    pub const LOCAL_WRITE: u32 = 1;
    /// The peer may write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// The peer may read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// The peer may do atomics.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound to the memory.
    pub const WINDOW_BIND: u32 = 1 << 4;
    /// Addresses of the peer count from the beginning of the memory.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// The memory is not pinned: the device asks for pages when it needs them.
    pub const ON_DEMAND: u32 = 1 << 6;
    /// Writes may overtake each other. Libraries and kernels that do not know this bit ignore it
    /// (`IBV_ACCESS_OPTIONAL_FIRST` and above).
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}
