//! Providers: the table of calls between the safe layer and the verbs.
//!
//! [`Provider`] holds the calls of the control path, reached by one virtual call each.
//! The calls of the data path are C functions with C arguments that a context hands out
//! once ([`HotCalls`]); queues keep them beside their handle, so posting and polling cost
//! exactly one indirect call, and no translation ([`abi`](super::abi)).
//!
//! There are two providers. `libibverbs` (feature `libibverbs`) is the system's library, found
//! when the program starts. `fake` (feature `fake`) is a device made of memory: it records its
//! calls, and fails, completes and raises events as a test tells it to. The layer above cannot
//! tell them apart.
//!
//! Rules for every implementation, which the layer's `unsafe` relies on:
//! 1. A handle stays valid until the call that destroys it has returned 0.
//! 2. The hot calls follow the contracts of ibv_post_send(3), ibv_post_recv(3),
//!    ibv_post_srq_recv(3), ibv_poll_cq(3) and ibv_req_notify_cq(3), and any threads may call them
//!    at a time. The calls of an extended completion queue ([`BatchCalls`]) follow
//!    ibv_create_cq_ex(3), and one thread calls them at a time.
//! 3. After `deregister` has returned `Ok`, the device reads and writes no byte of the
//!    region any more.

#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(feature = "libibverbs")]
mod libibverbs;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::{
    abi::{
        PollAttributes, RecvWr, SendWr, Wc,
        gid::GidEntry,
        port::PortAttributes,
        queue_pair_state::{AttributeMask, QueuePairAttributes},
    },
    device::fork_report::ForkStatus,
    error::VerbsError,
};

#[cfg(feature = "libibverbs")]
pub use libibverbs::Libibverbs;

/// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
pub type PostSend = unsafe extern "C" fn(*mut c_void, *mut SendWr, *mut *mut SendWr) -> c_int;
/// `ibv_post_recv` and `ibv_post_srq_recv`.
pub type PostReceive = unsafe extern "C" fn(*mut c_void, *mut RecvWr, *mut *mut RecvWr) -> c_int;
/// [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html).
pub type PollQueue = unsafe extern "C" fn(*mut c_void, c_int, *mut Wc) -> c_int;
/// [`ibv_req_notify_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html).
pub type RequestNotify = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

/// The calls of the data path.
#[derive(Clone, Copy)]
pub struct HotCalls {
    /// The call that posts sends to a queue pair.
    pub post_send: PostSend,
    /// The call that posts receives to a queue pair without a shared receive queue.
    pub post_receive: PostReceive,
    /// The call that posts receives to a shared receive queue.
    pub post_shared_receive: PostReceive,
    /// On a completion queue.
    pub poll_queue: PollQueue,
    /// On a completion queue.
    pub request_notify: RequestNotify,
}

impl fmt::Debug for HotCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HotCalls")
    }
}

/// `ibv_start_poll`.
pub type StartPoll = unsafe extern "C" fn(*mut c_void, *mut PollAttributes) -> c_int;
/// `ibv_next_poll`.
pub type NextPoll = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `ibv_end_poll`.
pub type EndPoll = unsafe extern "C" fn(*mut c_void);
/// `ibv_wc_read_opcode` and its like.
pub type ReadField = unsafe extern "C" fn(*mut c_void) -> u32;
/// `ibv_wc_read_completion_ts`.
pub type ReadTime = unsafe extern "C" fn(*mut c_void) -> u64;

/// The calls of one extended completion queue, and the places where it shows the completion that it
/// stands at. A provider sets them when it makes the queue and never again.
#[derive(Clone, Copy)]
pub struct BatchCalls {
    /// The call that begins a batch, at its first completion.
    pub start: StartPoll,
    /// The call that moves on to the next completion.
    pub next: NextPoll,
    /// The call that ends the batch.
    pub end: EndPoll,
    /// The request's identity.
    pub wr_id: NonNull<u64>,
    /// The request's status.
    pub status: NonNull<u32>,
    /// `enum ibv_wc_opcode`.
    pub opcode: ReadField,
    /// The device's own code for the failure.
    pub vendor_err: ReadField,
    /// Bits of `enum ibv_wc_flags`.
    pub flags: ReadField,
    /// Bytes received.
    pub byte_len: ReadField,
    /// Immediate data, in network byte order.
    pub imm_data: ReadField,
    /// The local queue pair.
    pub qp_num: ReadField,
    /// The completion's time by the device's clock; only where it was requested.
    pub time: Option<ReadTime>,
}

// SAFETY: functions, and places that the queue's one owner reads between them (rule 2).
unsafe impl Send for BatchCalls {}
// SAFETY: as above.
unsafe impl Sync for BatchCalls {}

impl fmt::Debug for BatchCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchCalls")
    }
}

/// The description of an extended completion queue.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedInit {
    /// Entries wanted.
    pub entries: u32,
    /// The channel that the queue wakes.
    pub channel: Option<ChannelHandle>,
    /// The completion vector whose interrupt serves its channel.
    pub vector: u32,
    /// The tag by which events name the queue.
    pub tag: u64,
    /// True if each completion has a time.
    pub times: bool,
}

/// An extended completion queue.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedQueue {
    /// The queue, for all calls that take a completion queue.
    pub handle: CompletionHandle,
    /// The size that the provider gave the queue.
    pub entries: u32,
    /// The calls by which the queue is polled.
    pub calls: BatchCalls,
}

/// The clock that completions are stamped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAttributes {
    /// The clock's ticks in a millisecond.
    pub kilohertz: u64,
    /// The bits of a stamp that count.
    pub mask: u64,
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(NonNull<c_void>);

        // SAFETY: a handle is a name; the provider's calls take it from any thread (rule 2).
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// Names the object at `pointer`, if there is one.
            pub fn new<T>(pointer: *mut T) -> Option<Self> {
                NonNull::new(pointer.cast()).map(Self)
            }

            /// Returns the pointer that the provider's C functions take.
            #[inline]
            pub fn as_ptr<T>(self) -> *mut T {
                self.0.as_ptr().cast()
            }
        }
    )*};
}

handles! {
    /// An open device.
    ContextHandle;
    /// A protection domain.
    DomainHandle;
    /// A memory region.
    RegionHandle;
    /// A completion channel.
    ChannelHandle;
    /// A completion queue.
    CompletionHandle;
    /// A shared receive queue.
    SharedReceiveHandle;
    /// A queue pair.
    PairHandle;
}

/// An entry of the list of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The device's name, as in `/sys/class/infiniband`. The device may be renamed.
    pub name: String,
    /// The device's file in `/dev/infiniband`.
    pub file: String,
    /// The kind of network that the device speaks.
    pub transport: Transport,
}

/// `enum ibv_transport_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand and RoCE.
    InfiniBand,
    /// RDMA over tcp.
    Iwarp,
    /// Cisco's usNIC, over Ethernet or UDP.
    UsNic,
    /// A network of the vendor's own, such as EFA.
    Unspecified,
    /// A number that this version does not know.
    Unknown(i32),
}

impl Transport {
    /// From the C enumeration.
    #[must_use]
    pub fn from_raw(raw: i32) -> Self {
        match raw {
            0 => Self::InfiniBand,
            1 => Self::Iwarp,
            2 | 3 => Self::UsNic,
            4 => Self::Unspecified,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand/RoCE"),
            Self::Iwarp => f.write_str("iWARP"),
            Self::UsNic => f.write_str("usNIC"),
            Self::Unspecified => f.write_str("vendor-specific (EFA and the like)"),
            Self::Unknown(raw) => write!(f, "unknown ({raw})"),
        }
    }
}

/// The result of `open`.
#[derive(Clone, Copy, Debug)]
pub struct OpenedContext {
    /// The context.
    pub handle: ContextHandle,
    /// The context's calls of the data path.
    pub hot: HotCalls,
    /// Readable when an asynchronous event waits.
    pub async_fd: RawFd,
}

/// `ibv_device_attr`, as far as it is used.
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
    /// Physical ports, numbered from 1.
    pub ports: u8,
}

/// A registered region's keys.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredRegion {
    /// The region.
    pub handle: RegionHandle,
    /// The key for our own requests.
    pub lkey: u32,
    /// The key for the peer's requests.
    pub rkey: u32,
}

/// Sizes of a queue pair, as asked for and as given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairSizes {
    /// Send requests outstanding.
    pub send_requests: u32,
    /// Receive requests outstanding; 0 with a shared receive queue.
    pub receive_requests: u32,
    /// Scatter entries of a send.
    pub send_entries: u32,
    /// Scatter entries of a receive.
    pub receive_entries: u32,
    /// Bytes of an inline send.
    pub inline_bytes: u32,
}

/// The description of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairInit {
    /// The queue for completions of sends.
    pub send_queue: CompletionHandle,
    /// The queue for completions of receives.
    pub receive_queue: CompletionHandle,
    /// The shared receive queue, or none.
    pub shared: Option<SharedReceiveHandle>,
    /// Sizes wanted.
    pub sizes: QueuePairSizes,
}

/// A new queue pair, with the sizes that it got.
#[derive(Clone, Copy, Debug)]
pub struct CreatedPair {
    /// The queue pair.
    pub handle: PairHandle,
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// Sizes given.
    pub sizes: QueuePairSizes,
}

/// An asynchronous event, copied out of the provider's structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// `enum ibv_event_type`.
    pub event_type: u32,
    /// The queue pair's number, the port's number, or the tag that the completion queue
    /// or shared receive queue was made with, by kind of event; else 0.
    pub element: u64,
}

mod sealed {
    /// Limits providers to those of this module.
    pub trait Sealed {}
}

/// The calls of the control path. Sealed: see the module's rules.
///
/// # Safety
/// Every `unsafe` method asks for one thing: the handles given to it came from this provider and
/// have not been destroyed; destroying calls also require that no other object still uses the one
/// destroyed. A refusal has the errno of the call of the same name in libibverbs.
#[allow(
    clippy::missing_safety_doc,
    reason = "one contract for all methods, stated on the trait"
)]
#[allow(clippy::missing_errors_doc, reason = "the errno of the verb behind it")]
pub trait Provider: sealed::Sealed + Send + Sync + fmt::Debug {
    /// `ibv_get_device_list`, or the reason why there is no list.
    fn devices(&self) -> Result<Vec<DeviceEntry>, VerbsError>;
    /// `ibv_is_fork_initialized`.
    fn fork_status(&self) -> ForkStatus;
    /// `ibv_open_device`, for a device in the list, which is taken again. The error tells which of
    /// the two calls failed.
    fn open(&self, name: &str) -> Result<OpenedContext, VerbsError>;
    /// `ibv_close_device`.
    unsafe fn close(&self, context: ContextHandle) -> Result<(), Errno>;
    /// [`ibv_query_device(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html).
    unsafe fn query_device(&self, context: ContextHandle) -> Result<DeviceAttributes, Errno>;
    /// [`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html).
    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> Result<PortAttributes, Errno>;
    /// `ibv_query_gid_ex`; `Ok(None)` for an empty slot of the table.
    unsafe fn query_gid(
        &self,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> Result<Option<GidEntry>, Errno>;
    /// [`ibv_query_pkey(3)`](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html).
    unsafe fn query_pkey(&self, context: ContextHandle, port: u8, index: u16)
    -> Result<u16, Errno>;
    /// `ibv_get_async_event` and its ack; `Ok(None)` when none waits.
    unsafe fn async_event(&self, context: ContextHandle) -> Result<Option<RawEvent>, Errno>;

    /// [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno>;
    /// `ibv_dealloc_pd`.
    unsafe fn destroy_domain(&self, domain: DomainHandle) -> Result<(), Errno>;
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). The range is
    /// mapped, and stays so until `deregister` is done.
    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno>;
    /// `ibv_dereg_mr`.
    unsafe fn deregister(&self, region: RegionHandle) -> Result<(), Errno>;

    /// `ibv_create_comp_channel`; returns its descriptor too.
    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno>;
    /// `ibv_destroy_comp_channel`.
    unsafe fn destroy_channel(&self, channel: ChannelHandle) -> Result<(), Errno>;
    /// `ibv_get_cq_event`; returns whether there was an event. The caller has to acknowledge it.
    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<bool, Errno>;
    /// `ibv_create_cq` on a completion vector; returns the size of the queue.
    unsafe fn create_completion_queue(
        &self,
        context: ContextHandle,
        entries: u32,
        channel: Option<ChannelHandle>,
        vector: u32,
        tag: u64,
    ) -> Result<(CompletionHandle, u32), Errno>;
    /// `ibv_create_cq_ex` for one thread, with the fields that [`BatchCalls`] has.
    /// `EOPNOTSUPP` where there is none, or none with times.
    unsafe fn create_extended_queue(
        &self,
        context: ContextHandle,
        init: &ExtendedInit,
    ) -> Result<ExtendedQueue, Errno>;
    /// `ibv_query_device_ex`, as far as it is about the clock; `None` where there is none.
    unsafe fn query_clock(&self, context: ContextHandle) -> Result<Option<ClockAttributes>, Errno>;
    /// `ibv_query_rt_values_ex`: the clock, now.
    unsafe fn read_clock(&self, context: ContextHandle) -> Result<u64, Errno>;
    /// `ibv_ack_cq_events`.
    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32);
    /// `ibv_destroy_cq`.
    unsafe fn destroy_completion_queue(&self, queue: CompletionHandle) -> Result<(), Errno>;

    /// `ibv_create_srq`; returns the numbers of requests and entries that the queue has.
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        requests: u32,
        entries: u32,
        tag: u64,
    ) -> Result<(SharedReceiveHandle, u32, u32), Errno>;
    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`.
    unsafe fn arm_shared_receive_limit(
        &self,
        queue: SharedReceiveHandle,
        limit: u32,
    ) -> Result<(), Errno>;
    /// `ibv_destroy_srq`.
    unsafe fn destroy_shared_receive(&self, queue: SharedReceiveHandle) -> Result<(), Errno>;

    /// `ibv_create_qp` of type RC, signaling nothing by itself.
    unsafe fn create_pair(
        &self,
        domain: DomainHandle,
        init: &QueuePairInit,
    ) -> Result<CreatedPair, Errno>;
    /// [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html).
    unsafe fn modify_pair(
        &self,
        pair: PairHandle,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), Errno>;
    /// `ibv_destroy_qp`.
    unsafe fn destroy_pair(&self, pair: PairHandle) -> Result<(), Errno>;
}
