//! The core of [ibex](https://docs.rs/ibex): nodes, sessions with peers, and typed channels.
//!
//! Programs use the crate `ibex`, which re-exports all that is public here, and has the guide.
#![cfg_attr(docsrs, feature(doc_cfg))]

// The macros speak of `::ibex`; so do the examples in this crate's own tests.
#[allow(
    unused_extern_crates,
    reason = "the macros' output names it, where there is any"
)]
extern crate self as ibex;

mod accept_placement;
mod address;
pub mod asynchronous;
mod channel_builder;
mod channel_defaults;
mod connector;
mod dialing;
mod draining;
mod driving_tasks;
mod environment;
mod error;
mod event;
mod events;
pub mod extend;
mod fan_in;
pub mod group;
pub mod inspect;
mod listener;
mod message;
mod node;
mod node_builder;
mod node_settings;
mod node_slots;
mod peer;
mod publisher;
#[cfg(feature = "verbs")]
pub mod rdma;
mod receiver;
mod region;
mod reservation;
mod resuming;
mod security_stats;
mod select;
mod sender;
mod setting;
pub mod shared_memory;
mod slow_message;
pub mod stats;
#[cfg(feature = "tokio")]
mod tasks;
mod template;
mod versions;
mod wake_ups;

pub use address::ToAddress;
pub use channel_builder::ChannelBuilder;
pub use draining::DrainReport;
pub use error::{
    ConnectError, ConnectErrorKind, ListenError, ListenErrorKind, NotOpened, OpenError,
    OpenErrorKind, RecvError, RecvErrorKind, SendError, SendErrorKind, WaitError, WaitErrorKind,
};
pub use event::Event;
pub use events::Events;
pub use fan_in::{FanIn, FanInEvent};
pub use message::Message;
pub use node::{Node, WeakNode};
pub use node_builder::NodeBuilder;
pub use peer::{Peer, PeerAt, PeerId};
pub use publisher::Publisher;
pub use receiver::Receiver;
pub use region::RegionMessage;
pub use reservation::{Loan, Permit};
pub use select::{Select, Selectable};
pub use sender::Sender;
pub use versions::{VersionedReceiver, VersionedSender, Versions};

#[doc(no_inline)]
pub use ibex_codec as codec;
pub use ibex_codec::{Codec, Pod, Raw, Schema, bytemuck};
#[cfg(feature = "rkyv")]
pub use ibex_codec::{Rkyv, message, rkyv};
#[cfg(feature = "serde")]
pub use ibex_codec::{Serde, SerdeBorrowed, serde, serde_bytes};

pub use ibex_base::Address;
pub use ibex_bootstrap::{FabricKind as Fabric, Integrity, Policy};
pub use ibex_protocol::format::control::{CloseReason, Role};
pub use ibex_protocol::format::trace_context::{InvalidTraceContext, TraceContext};
pub use ibex_ring::memory::{Region, RegionSlice};
pub use ibex_tls::AuthenticatedAs;
#[cfg(feature = "tls")]
pub use ibex_tls::{Encryption, Security, SecurityError, SharedSecret, rustls};
pub use ibex_transport::{
    node::{CloseReport, Undelivered, Wait},
    runtime::Driver,
    session::{Counts, EndCause, PeerNames, Suspension},
};
