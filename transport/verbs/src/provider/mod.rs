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
//! 3. After `destroy` has returned `Ok` for a region, the device reads and writes no byte of the
//!    region any more.
#![allow(
    clippy::missing_safety_doc,
    clippy::missing_errors_doc,
    reason = "the providers' traits state one contract for all methods: the verb's, and its errno"
)]

pub(crate) mod all;
mod attributes;
mod completion;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
#[cfg(feature = "libibverbs")]
mod libibverbs;
mod shared_receives;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use rustix::io;

use crate::abi::{BindInfo, RecvWr, SendWr, Wc};
use crate::{
    ForkStatus, GidEntry, PortAttributes, QueuePairKind, VerbsError,
    abi::attribute_mask::AttributeMask, abi::enumeration::enumeration,
    abi::queue_pair_attributes::QueuePairAttributes,
};

pub use crate::abi::transport::Transport;
pub use attributes::{AtomicSupport, DeviceAttributes};
pub use completion::{
    BatchCalls, CompletionInit, EndPoll, ExtendedQueue, NextPoll, ReadField, ReadTime, StartPoll,
};
#[cfg(feature = "libibverbs")]
pub use libibverbs::Libibverbs;
pub use shared_receives::{CreatedSharedReceive, SharedReceiveAttributes, SharedReceiveInit};

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

macro_rules! handles {
    ($($(#[$doc:meta])* $kind:ident: $name:ident, $verb:literal;)*) => {
        $(
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

            impl From<$name> for AnyHandle {
                fn from(handle: $name) -> Self {
                    Self::$kind(handle)
                }
            }
        )*

        /// The handle of any object.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum AnyHandle {
            $($(#[$doc])* $kind($name),)*
        }

        impl AnyHandle {
            /// Returns the name of the verb that destroys the object.
            #[must_use]
            pub fn end_verb(self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $verb,)*
                }
            }
        }
    };
}

handles! {
    /// An open device.
    Context: ContextHandle, "ibv_close_device";
    /// A protection domain.
    Domain: DomainHandle, "ibv_dealloc_pd";
    /// A memory region.
    Region: RegionHandle, "ibv_dereg_mr";
    /// A memory window.
    Window: WindowHandle, "ibv_dealloc_mw";
    /// Memory of a device.
    Buffer: BufferHandle, "ibv_free_dm";
    /// A completion channel.
    Channel: ChannelHandle, "ibv_destroy_comp_channel";
    /// A completion queue.
    Completion: CompletionHandle, "ibv_destroy_cq";
    /// A shared receive queue.
    SharedReceive: SharedReceiveHandle, "ibv_destroy_srq";
    /// A queue pair.
    Pair: PairHandle, "ibv_destroy_qp";
    /// An address handle.
    Address: AddressObject, "ibv_destroy_ah";
    /// A domain of extended connections.
    XrcDomain: XrcDomainHandle, "ibv_close_xrcd";
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

enumeration! {
    /// `enum ibv_node_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    NodeType(i32), "unknown ({})", {
        /// A channel adapter, of InfiniBand or RoCE.
        ChannelAdapter = 1, "InfiniBand channel adapter";
        /// A switch of InfiniBand.
        Switch = 2, "InfiniBand switch";
        /// A router of InfiniBand.
        Router = 3, "InfiniBand router";
        /// An adapter of iWARP.
        Rnic = 4, "iWARP NIC";
        /// An adapter of usNIC.
        UsNic = 5, "usNIC";
        /// An adapter of usNIC over UDP.
        UsNicUdp = 6, "usNIC UDP";
        /// An adapter of a network of the vendor's own.
        Unspecified = 7, "unspecified";
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

/// The description of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairInit {
    /// The protection domain.
    pub domain: DomainHandle,
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

/// The calls of the control path. `AllProvider`, which is private, limits providers to those of this
/// module: see its rules.
///
/// # Safety
/// Every `unsafe` method asks for one thing: the handles given to it came from this provider and
/// have not been destroyed; destroying calls also require that no other object still uses the one
/// destroyed. A refusal has the errno of the call of the same name in libibverbs.
pub trait Provider: all::AllProvider + Send + Sync + fmt::Debug {
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
    /// Destroys an object, by its [verb](AnyHandle::end_verb). A window is unbound thereby.
    unsafe fn destroy(&self, handle: AnyHandle) -> io::Result<()>;
    /// [`ibv_query_device(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html).
    unsafe fn query_device(&self, context: ContextHandle) -> io::Result<DeviceAttributes>;
    /// [`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html).
    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> io::Result<PortAttributes>;
    /// `ibv_query_gid_ex`; `Ok(None)` for an empty slot of the table.
    unsafe fn query_gid(
        &self,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> io::Result<Option<GidEntry>>;
    /// [`ibv_query_pkey(3)`](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html).
    unsafe fn query_pkey(&self, context: ContextHandle, port: u8, index: u16) -> io::Result<u16>;
    /// `ibv_get_async_event` and its ack; `Ok(None)` when none waits.
    unsafe fn async_event(&self, context: ContextHandle) -> io::Result<Option<RawEvent>>;

    /// `ibv_create_qp`, signaling nothing by itself.
    unsafe fn create_pair(&self, init: &QueuePairInit) -> io::Result<CreatedPair>;
    /// [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html).
    unsafe fn modify_pair(
        &self,
        pair: PairHandle,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> io::Result<()>;
    /// [`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
    unsafe fn query_pair(&self, pair: PairHandle) -> io::Result<QueriedPair>;

    // ---- Protection domains and memory -----------------------------------------------

    /// [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
    unsafe fn create_domain(&self, context: ContextHandle) -> io::Result<DomainHandle>;
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). The range is
    /// mapped, and stays so until the region is destroyed.
    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> io::Result<RegisteredRegion>;

    /// [`ibv_alloc_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html); returns the
    /// window's key too.
    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> io::Result<(WindowHandle, u32)>;
    /// [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), for a window of
    /// type 1; returns the key that it gets. The region in `info` exists, or is null.
    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> io::Result<u32>;
    /// Notes the key that a window of type 2 has got, from which the driver knows its next one.
    unsafe fn set_window_key(&self, window: WindowHandle, key: u32);

    // ---- Completions -----------------------------------------------------------------

    /// `ibv_create_comp_channel`; returns its descriptor too.
    unsafe fn create_channel(&self, context: ContextHandle) -> io::Result<(ChannelHandle, RawFd)>;
    /// `ibv_get_cq_event`; returns the tag of the queue, or `None` without an event. The caller has to
    /// acknowledge it.
    unsafe fn channel_event(&self, channel: ChannelHandle) -> io::Result<Option<u64>>;
    /// `ibv_create_cq` on a completion vector; returns the size of the queue.
    unsafe fn create_completion_queue(
        &self,
        init: &CompletionInit,
    ) -> io::Result<(CompletionHandle, u32)>;
    /// `ibv_create_cq_ex` for one thread, with the fields that [`BatchCalls`] has.
    /// `EOPNOTSUPP` where there is none, or none with times.
    unsafe fn create_extended_queue(&self, init: &CompletionInit) -> io::Result<ExtendedQueue>;
    /// `ibv_query_rt_values_ex`: the clock, now.
    unsafe fn read_clock(&self, context: ContextHandle) -> io::Result<u64>;
    /// `ibv_ack_cq_events`.
    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32);

    // ---- Shared receive queues -------------------------------------------------------

    /// `ibv_create_srq`; for extended connections
    /// [`ibv_create_srq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html) of the
    /// type `IBV_SRQT_XRC`, and `ibv_get_srq_num`.
    unsafe fn create_shared_receive(
        &self,
        init: &SharedReceiveInit,
    ) -> io::Result<CreatedSharedReceive>;
    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`.
    unsafe fn arm_shared_receive_limit(
        &self,
        queue: SharedReceiveHandle,
        limit: u32,
    ) -> io::Result<()>;
    /// [`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html).
    unsafe fn query_shared_receive(
        &self,
        queue: SharedReceiveHandle,
    ) -> io::Result<SharedReceiveAttributes>;
}
