//! RDMA verbs: reliable connections over InfiniBand and RoCE.
//!
//! This is the layer between the verbs and whoever moves messages by them. It has the
//! field's own nouns, one per file, and takes care of what a type can:
//!
//! - an object keeps alive what it was made from, so nothing is destroyed too early
//!   ([`device`]);
//! - posting and polling take `&mut`, so two threads cannot interleave;
//! - memory that a device may still touch is not given back ([`memory_region`]);
//! - a change of a queue pair's state that no device would take is refused with what is
//!   missing ([`queue_pair_state`]);
//! - what a device, a later kernel or a peer says is an enumeration with an `Unknown`,
//!   and what goes wrong is told as a diagnosis ([`error`]).
//!
//! ```text
//! Device ── ProtectionDomain ── MemoryRegion
//!   │              ├── ReceiveQueue (shared) ──┐
//!   ├── CompletionQueue (CompletionChannel) ───┴── QueuePair ── Teardown
//!   │         └── CompletionWait
//!   └── AsyncEvents
//! ```
//!
//! Below it is a [table of calls](provider), filled by libibverbs or by a fake, so all of
//! this is tested on machines without any device. [`discovery`] finds the devices and
//! chooses one.

pub mod abi;
mod anonymous_memory;
mod async_event;
mod completion_batch;
mod completion_channel;
mod completion_polling;
mod completion_queue;
mod completion_wait;
mod connect_error;
mod connection;
pub mod device;
mod device_clock;
pub mod discovery;
mod drain_lock;
pub mod error;
mod fork_report;
mod gid;
mod immediate_test;
mod locked_memory;
pub mod memory_region;
mod partition;
mod port;
mod protection_domain;
pub mod provider;
mod queue_pair;
pub mod queue_pair_state;
mod receive_queue;
mod teardown;
mod work_completion;
mod work_id;
mod work_request;

pub use anonymous_memory::AnonymousMemory;
pub use async_event::{AsyncEvent, AsyncEvents, EventElement, PortEvent, QueuePairEvent};
pub use completion_channel::CompletionChannel;
pub use completion_polling::{CompletionPolling, PollingChoice, PollingWish, Reason};
pub use completion_queue::CompletionQueue;
pub use completion_wait::CompletionWait;
pub use connect_error::{ConnectCause, ConnectError};
pub use connection::{ConnectionSettings, FirstSequence, LocalPort, RemoteEndpoint};
pub use device::Device;
pub use error::VerbsError;
pub use fork_report::{ForkReport, ForkStatus};
pub use gid::{Gid, GidEntry, GidScope, GidType};
pub use immediate_test::carries_immediate;
pub use memory_region::{DeviceMemory, MemoryRegion, RegionAccess, RemoteAddress, ScatterEntry};
pub use partition::{Partition, PartitionKey};
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{QueuePair, QueuePairBuilder, SendBatch};
pub use queue_pair_state::QueuePairState;
pub use receive_queue::{PostError, RECEIVE_BATCH, ReceiveBatch, ReceiveQueue};
pub use teardown::{DEFAULT_DRAIN_TIMEOUT, Teardown, Verdict};
pub use work_completion::{
    Completed, CompletionFailure, CompletionKind, CompletionStatus, Fault, WorkCompletion,
};
pub use work_id::{Operation, WorkId};
pub use work_request::{PushError, ReceiveRequest, SendRequest};

#[cfg(test)]
mod tests;
