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

mod attributes;
pub(crate) mod datagram;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(feature = "libibverbs")]
mod libibverbs;
pub(crate) mod xrc;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

use rustix::io::Errno;

use super::{
    abi::{
        BindInfo, PollAttributes, RecvWr, SendWr, Sge, Wc,
        gid::GidEntry,
        port::PortAttributes,
        queue_pair_kind::QueuePairKind,
        queue_pair_state::{AttributeMask, QueuePairAttributes},
    },
    completion::details::CompletionFields,
    device::fork_report::ForkStatus,
    error::VerbsError,
};

pub use attributes::{
    AtomicSupport, DeviceAttributes, ExtendedAttributes, OnDemandSupport, PacketPacing, PciAtomics,
    ReceiveHashing, Segmentation, TagMatching,
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

/// `ibv_wc_read_sl` and its like.
pub type ReadByte = unsafe extern "C" fn(*mut c_void) -> u8;
/// `ibv_wc_read_cvlan`.
pub type ReadVlan = unsafe extern "C" fn(*mut c_void) -> u16;

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
    /// The calls of the fields that were requested beyond these.
    pub details: DetailCalls,
}

/// The calls that read further fields of a completion; each only where it was requested.
#[derive(Clone, Copy, Default)]
pub struct DetailCalls {
    /// The sender's queue pair.
    pub source_queue_pair: Option<ReadField>,
    /// The sender's LID.
    pub source_lid: Option<ReadField>,
    /// The service level.
    pub service_level: Option<ReadByte>,
    /// The path bits of the port's LID.
    pub path_bits: Option<ReadByte>,
    /// The customer's VLAN.
    pub vlan: Option<ReadVlan>,
    /// The tag of the flow rule.
    pub flow_tag: Option<ReadField>,
    /// The completion's time by the system's clock, in nanoseconds.
    pub wall_clock: Option<ReadTime>,
}

impl fmt::Debug for DetailCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetailCalls")
    }
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
    /// The further fields that each completion has.
    pub fields: CompletionFields,
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
    /// A memory window.
    WindowHandle;
    /// Memory of a device.
    BufferHandle;
    /// A completion channel.
    ChannelHandle;
    /// A completion queue.
    CompletionHandle;
    /// A shared receive queue.
    SharedReceiveHandle;
    /// A queue pair.
    PairHandle;
    /// An address handle.
    AddressObject;
    /// A domain of extended connections.
    XrcDomainHandle;
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
    /// The node's 64-bit identifier (`ibv_get_device_guid`); 0 if `/sys` does not tell it.
    pub guid: u64,
    /// The kind of node that the device is.
    pub node_type: NodeType,
}

/// `enum ibv_node_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeType {
    /// A channel adapter, of InfiniBand or RoCE.
    ChannelAdapter,
    /// A switch of InfiniBand.
    Switch,
    /// A router of InfiniBand.
    Router,
    /// An adapter of iWARP.
    Rnic,
    /// An adapter of usNIC.
    UsNic,
    /// An adapter of usNIC over UDP.
    UsNicUdp,
    /// An adapter of a network of the vendor's own.
    Unspecified,
    /// A number that this version does not know.
    Unknown(i32),
}

impl NodeType {
    /// Translates the C enumeration.
    #[must_use]
    pub fn from_raw(raw: i32) -> Self {
        match raw {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::Rnic,
            5 => Self::UsNic,
            6 => Self::UsNicUdp,
            7 => Self::Unspecified,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for NodeType {
    /// The names of `ibv_node_type_str`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelAdapter => "InfiniBand channel adapter",
            Self::Switch => "InfiniBand switch",
            Self::Router => "InfiniBand router",
            Self::Rnic => "iWARP NIC",
            Self::UsNic => "usNIC",
            Self::UsNicUdp => "usNIC UDP",
            Self::Unspecified => "unspecified",
            Self::Unknown(raw) => return write!(f, "unknown ({raw})"),
        })
    }
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

/// `enum ibv_mw_type`: how a memory window is bound and invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Type 1: bound and unbound by a call, reached through every queue pair of its domain.
    One,
    /// Type 2: bound by a work request, reached through that queue pair alone, and invalidated by
    /// either end.
    Two,
}

/// Returns the key that a window gets with its next binding (`ibv_inc_rkey`).
pub(crate) fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
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

/// The change of a registration; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reregistration {
    /// The new protection domain.
    pub domain: Option<DomainHandle>,
    /// The new memory: its first byte, and its length.
    pub memory: Option<(NonNull<u8>, usize)>,
    /// The new rights.
    pub access: Option<u32>,
}

/// The result of a change of a registration that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReregisterFailure {
    /// The registration is as it was.
    Unchanged(Errno),
    /// The registration cannot be used, but has to be ended.
    Unusable(Errno),
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

/// A queue pair as its device describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueriedPair {
    /// The attributes, with the state that the queue pair is in.
    pub attributes: QueuePairAttributes,
    /// Sizes of its queues.
    pub sizes: QueuePairSizes,
    /// The send queue is being drained: some requests that were begun are not finished.
    pub is_draining: bool,
}

/// `ibv_srq_attr`: a shared receive queue as its device describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveAttributes {
    /// Requests that it holds.
    pub requests: u32,
    /// Scatter entries of one request.
    pub entries: u32,
    /// The number of receives below which the event is raised; 0 when it is not armed.
    pub limit: u32,
}

/// The description of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairInit {
    /// The kind of the queue pair.
    pub kind: QueuePairKind,
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
pub trait Provider:
    datagram::DatagramProvider + xrc::XrcProvider + sealed::Sealed + Send + Sync + fmt::Debug
{
    /// `ibv_get_device_list`, or the reason why there is no list.
    fn devices(&self) -> Result<Vec<DeviceEntry>, VerbsError>;
    /// Returns whether handles are pointers of libibverbs.
    fn is_libibverbs(&self) -> bool {
        false
    }
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

    /// [`ibv_rereg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_rereg_mr.3.html); returns the
    /// region's keys. A new range is mapped, and stays so until `deregister` is done. After this the
    /// device touches no byte of an old range.
    unsafe fn reregister(
        &self,
        region: RegionHandle,
        change: &Reregistration,
    ) -> Result<(u32, u32), ReregisterFailure>;
    /// `ibv_reg_dmabuf_mr`, on the page of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). The region's
    /// addresses begin at `offset`.
    unsafe fn register_dmabuf(
        &self,
        domain: DomainHandle,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno>;
    /// [`ibv_advise_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html).
    unsafe fn advise(
        &self,
        domain: DomainHandle,
        advice: u32,
        flags: u32,
        piece: Sge,
    ) -> Result<(), Errno>;
    /// [`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html), aligned to
    /// this power of two.
    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        align_log: u32,
    ) -> Result<BufferHandle, Errno>;
    /// `ibv_free_dm`.
    unsafe fn destroy_buffer(&self, buffer: BufferHandle) -> Result<(), Errno>;
    /// `ibv_memcpy_to_dm`. The bytes are within the buffer.
    unsafe fn write_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Errno>;
    /// `ibv_memcpy_from_dm`. The bytes are within the buffer.
    unsafe fn read_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Errno>;
    /// `ibv_reg_dm_mr`. The region's addresses begin at 0.
    unsafe fn register_buffer(
        &self,
        domain: DomainHandle,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno>;

    /// [`ibv_alloc_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html); returns the
    /// window's key too.
    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno>;
    /// `ibv_dealloc_mw`, which also unbinds the window.
    unsafe fn destroy_window(&self, window: WindowHandle) -> Result<(), Errno>;
    /// [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), for a window of
    /// type 1; returns the key that it gets. The region in `info` exists, or is null.
    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> Result<u32, Errno>;
    /// Notes the key that a window of type 2 has got, from which the driver knows its next one.
    unsafe fn set_window_key(&self, window: WindowHandle, key: u32);

    /// `ibv_create_comp_channel`; returns its descriptor too.
    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno>;
    /// `ibv_destroy_comp_channel`.
    unsafe fn destroy_channel(&self, channel: ChannelHandle) -> Result<(), Errno>;
    /// `ibv_get_cq_event`; returns the tag of the queue, or `None` without an event. The caller has to
    /// acknowledge it.
    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<Option<u64>, Errno>;
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
    /// [`ibv_resize_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_resize_cq.3.html); returns the
    /// size of the queue. No thread polls it during the call.
    unsafe fn resize_completion_queue(
        &self,
        queue: CompletionHandle,
        entries: u32,
    ) -> Result<u32, Errno>;
    /// [`ibv_modify_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_cq.3.html): an event
    /// after so many completions or microseconds.
    unsafe fn moderate_completions(
        &self,
        queue: CompletionHandle,
        count: u16,
        micros: u16,
    ) -> Result<(), Errno>;
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
    /// `ibv_modify_srq` with `IBV_SRQ_MAX_WR`; the size of the queue is then queried. No thread posts
    /// to it during the call.
    unsafe fn resize_shared_receive(
        &self,
        queue: SharedReceiveHandle,
        requests: u32,
    ) -> Result<(), Errno>;
    /// [`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html).
    unsafe fn query_shared_receive(
        &self,
        queue: SharedReceiveHandle,
    ) -> Result<SharedReceiveAttributes, Errno>;
    /// `ibv_destroy_srq`.
    unsafe fn destroy_shared_receive(&self, queue: SharedReceiveHandle) -> Result<(), Errno>;

    /// `ibv_create_qp`, signaling nothing by itself.
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
    /// [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
    unsafe fn query_pair(&self, pair: PairHandle) -> Result<QueriedPair, Errno>;
    /// `ibv_destroy_qp`.
    unsafe fn destroy_pair(&self, pair: PairHandle) -> Result<(), Errno>;
}
