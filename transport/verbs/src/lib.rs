//! RDMA verbs over InfiniBand and RoCE: connections, datagrams, reads, atomics and memory windows.
//!
//! This is the layer between the verbs and code that moves messages by them. The crate uses the
//! terms of the verbs, one per file, and enforces the rules that a type can express:
//!
//! - an object keeps the object alive that it was made from, so nothing is destroyed too early
//!   ([`device`]);
//! - posting and polling take `&mut`, so two threads cannot interleave;
//! - memory that a device may still touch is not given back ([`memory::region`]);
//! - a queue pair's state is changed with the attributes that its kind takes, and to no state that it
//!   cannot have ([`QueuePairKind::attributes_of`]);
//! - values from a device, a later kernel or a peer are enumerations with an `Unknown`, and
//!   failures are reported as a diagnosis ([`error`]).
//!
//! ```text
//! Device ── ProtectionDomain ── MemoryRegion, ForeignRegion ── MemoryWindow
//!   │              ├── ReceiveQueue (shared) ──┐
//!   ├── CompletionQueue (CompletionChannel) ───┴── QueuePair ── Teardown
//!   │         └── CompletionWait
//!   ├── OnDeviceMemory
//!   └── AsyncEvents
//! ```
//!
//! # Order of life
//!
//! 1. [`discovery`] lists the devices of the machine and chooses a port and a GID of one, and
//!    [`Device::open`] opens it.
//! 2. A [`ProtectionDomain`] holds the objects that belong together. A [`CompletionQueue`] reports
//!    the results of requests, and a [`CompletionWait`] over it sleeps until there is a result. A
//!    [`MemoryRegion`] is memory that the device may touch.
//! 3. [`QueuePairBuilder::build`] makes a queue pair, which takes receives from then on. Post
//!    some before it is connected, since the peer may send at once.
//! 4. The two ends tell each other [`QueuePair::endpoint`], by whatever connection they have, and
//!    each calls [`QueuePair::connect`].
//! 5. A [`SendBatch`] or a [`ReceiveBatch`] posts requests with one call. A request is
//!    outstanding until its completion is polled and the queue is told to retire it.
//! 6. [`Teardown`] brings a queue pair to its end with nothing left behind: it waits for the last
//!    completion. A program that drops a queue pair instead loses the outstanding requests.
//!
//! Everything can be dropped in any order.
//!
//! # Kinds of queue pairs
//!
//! Each kind is a [`QueuePair`] of a type of its own, which has the operations of that kind alone. All but RC stand behind the feature
//! `all`, and so do atomics and memory that is not the program's (a dma-buf, or memory of the device):
//!
//! | kind | type | sends | a message without a receive |
//! |---|---|---|---|
//! | RC | [`QueuePair`] | everything | is sent again |
//! | UC | [`UnreliableQueuePair`] | sends and writes | is lost |
//! | UD | [`DatagramQueuePair`] | messages of one packet, each to an [`AddressHandle`] or a [`MulticastGroup`] | is lost |
//! | XRC | [`XrcSendQueuePair`] | everything, each to an [`XrcReceiveQueue`] by number | is sent again |
//! | XRC | [`XrcReceiveQueuePair`] | nothing | |
//!
//! # Beyond messages
//!
//! A batch also takes [reads](ReadRequest) of the peer's memory and [atomics](AtomicRequest) on it. A
//! [`MemoryWindow`] lets the peer into a part of a region for one exchange, after which either end
//! takes the key back ([`memory_window`]). A [`ForeignRegion`] is memory of another driver or of the
//! device. What not every device has is refused by [`VerbsError::Unsupported`], with what to do
//! without it. The README has a table of verbs, methods and tests.
//!
//! # Examples
//!
//! `rc_pingpong` takes the steps above over the fake device (`cargo run -p ibex-verbs --features fake
//! --example rc_pingpong`), and there is one like it for each kind. The addresses of a port are a
//! [`LocalPort`], the
//! time-outs and retries of a pair its [`ConnectionSettings`], and a [`WorkId`] names a request in
//! its completion. The bytes of a [`RemoteEndpoint`] are the program's to encode. Reading and
//! writing the bytes of a [`MemoryRegion`] is `unsafe`: only the program knows when the device does
//! not touch them.
//!
//! A send that finds no receive at the peer is tried again as often as
//! [`ConnectionSettings`] says, by default for ever. So a first program that posts no receives
//! hangs.
//!
//! # Forks
//!
//! A child of a fork may use no part of this crate. If [`fork::claim`] was called in the parent
//! before, drops do nothing in the child, and the library is not loaded there.
//!
//! # Providers
//!
//! Below the objects is a [table of calls](provider), filled by the system's library (feature
//! `libibverbs`), which is looked for when the program starts, or by a device made of memory
//! (feature `fake`). The fake moves bytes between its queue pairs, so that tests run on machines
//! without any device. It does every operation of the README's table, and maps a memory file that is
//! registered as a dma-buf. The fake can refuse each of its calls with any errno, and lack what a
//! device may lack. It holds requests back, fails or flushes them, raises every asynchronous event,
//! and loses events. A script of faults has it drop, delay or fail the n-th request, and be removed.
//! It tells which objects are alive and which requests were posted.
//!
//! The fake checks less than a device. It ignores retry counts (a send without a receive waits for
//! ever), first sequences, the protection domain of a region and the number of a port. A completion
//! queue that overflows drops completions with an event alone.
#![cfg_attr(docsrs, feature(doc_cfg))]
// The README's code is compiled.
#![cfg_attr(all(doctest, feature = "fake"), doc = include_str!("../README.md"))]

pub mod abi;
mod completion;
pub mod device;
pub mod discovery;
pub(crate) mod endpoint;
pub mod error;
mod locked_memory;
pub mod memory;
mod probe;
pub mod provider;
mod queue_pair;
#[cfg(feature = "rdma-sys")]
#[cfg_attr(docsrs, doc(cfg(feature = "rdma-sys")))]
pub mod raw;
mod state_change_error;

#[cfg(feature = "all")]
#[cfg_attr(docsrs, doc(cfg(feature = "all")))]
pub use self::{
    abi::global_header::{GlobalHeader, HeaderRoute},
    memory::foreign::{ForeignMemory, ForeignRegion, OnDeviceMemory},
    queue_pair::{
        address::AddressHandle,
        atomic::{AtomicRequest, AtomicResult, AtomicResults},
        datagram::{
            DatagramBatch, DatagramDestination, DatagramQueuePair, DatagramReceives,
            MulticastGroup, QKey,
        },
        datagram_buffer::{DatagramBuffer, DatagramEntry, DatagramSource},
        unreliable::{UnreliableBatch, UnreliableQueuePair},
        xrc::{
            XrcBatch, XrcDomain, XrcOpening, XrcReceiveQueue, XrcReceiveQueuePair, XrcSendQueuePair,
        },
    },
};
pub use abi::async_event::{AsyncEvent, PortEvent, QueuePairEvent};
pub use abi::completion_polling::CompletionPolling;
pub use abi::completion_status::{CompletionStatus, Fault};
pub use abi::fork_status::ForkStatus;
pub use abi::gid::{Gid, GidEntry, GidScope, GidType};
pub use abi::partition::{Partition, PartitionKey};
pub use abi::port::{
    LinkLayer, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortAttributes, PortState,
};
pub use abi::queue_pair_kind::QueuePairKind;
pub use abi::remote_address::{RemoteAddress, RemoteKey};
pub use abi::work_id::{Operation, WorkId};
pub use abi::{
    queue_pair_attributes::{AddressVector, GlobalRoute},
    queue_pair_state::QueuePairState,
};
pub use completion::queue::CompletionQueue;
pub use completion::wait::CompletionWait;
pub use completion::work_completion::{
    Completed, CompletionFailure, CompletionKind, WorkCompletion,
};
pub use device::Device;
pub use device::async_event::AsyncEvents;
pub use device::fork_report::ForkReport;
pub use endpoint::{FirstSequence, LocalPort, RemoteEndpoint};
pub use error::VerbsError;
#[doc(no_inline)]
pub use ibex_base::fork;
pub use locked_memory::LockedMemory;
pub use memory::anonymous::AnonymousMemory;
pub use memory::protection_domain::ProtectionDomain;
pub use memory::{
    region::{DeviceMemory, MemoryRegion, RegionAccess},
    scatter_entry::{ScatterEntry, TargetEntry},
};
pub use probe::polling::{PollingChoice, PollingWish, ProbeFailure};
pub use probe::{immediate::carries_immediate, window::reads_by_window};
#[doc(no_inline)]
pub use provider::{
    AtomicSupport, DeviceAttributes, NodeType, QueriedPair, SharedReceiveAttributes, WindowKind,
};
pub use queue_pair::connection::ConnectionSettings;
#[doc(inline)]
pub use queue_pair::memory_window;
pub use queue_pair::memory_window::{BindRequest, MemoryWindow, WindowError, WindowState};
pub use queue_pair::read::{ReadLimits, ReadRequest};
pub use queue_pair::receive_queue::{PostError, RECEIVE_BATCH, ReceiveBatch, ReceiveQueue};
pub use queue_pair::teardown::{DEFAULT_DRAIN_TIMEOUT, Teardown, Verdict};
pub use queue_pair::work_request::{PushError, ReceiveRequest, SendRequest};
pub use queue_pair::{QueuePair, QueuePairBuilder, SendBatch, kind};
pub use state_change_error::{ConnectCause, StateChangeError};

/// The number of an error of the system, as `errno.h` has it.
#[doc(no_inline)]
pub use rustix::io::Errno;

#[cfg(feature = "rdma-sys")]
#[cfg_attr(docsrs, doc(cfg(feature = "rdma-sys")))]
#[doc(no_inline)]
pub use rdma_sys;

#[cfg(test)]
mod tests;
