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

/// Logs a warning within the limit of the process: see [`ibex_base::warn_limited`].
macro_rules! warn_limited {
    ($($line:tt)+) => { ibex_base::warn_limited!($($line)+) };
}

mod accept_placement;
mod address;
mod error;
mod event;
mod events;
pub mod extend;
mod handles;
mod many;
mod meeting;
mod node;
mod peer;
mod peer_id;
#[cfg(feature = "verbs")]
pub mod rdma;
mod setting;
pub mod shared_memory;
pub mod stats;

pub use address::ToAddress;
pub use error::{
    ConnectError, ConnectErrorKind, ListenError, ListenErrorKind, NotOpened, OpenError,
    OpenErrorKind, RecvError, RecvErrorKind, SendError, SendErrorKind, WaitError, WaitErrorKind,
};
pub use event::Event;
pub use events::Events;
pub use handles::{
    Loan, Message, Permit, Receiver, RegionMessage, Selectable, Sender, asynchronous,
};
pub use many::{
    FanIn, FanInEvent, Publisher, Select, VersionedReceiver, VersionedSender, Versions, group,
};
pub use node::{DrainReport, Node, NodeBuilder, WeakNode};
pub use peer::{ChannelBuilder, Peer};
pub use peer_id::{PeerAt, PeerId};

#[doc(no_inline)]
pub use ibex_codec as codec;
pub use ibex_codec::{Codec, Pod, Raw, Schema, bytemuck};
#[cfg(feature = "rkyv")]
pub use ibex_codec::{Rkyv, message, rkyv};
#[cfg(feature = "serde")]
pub use ibex_codec::{Serde, SerdeBorrowed, serde, serde_bytes};

#[cfg(feature = "tls")]
pub use ibex_base::tls::Encryption;
pub use ibex_base::{Address, Fabric, tls::AuthenticatedAs};
pub use ibex_bootstrap::{Integrity, Policy};
pub use ibex_protocol::format::control::{CloseReason, Role};
pub use ibex_protocol::format::trace_context::{InvalidTraceContext, TraceContext};
pub use ibex_ring::memory::{Region, RegionSlice};
#[cfg(feature = "tls")]
pub use ibex_tls::{Security, SecurityError, SharedSecret, rustls};
pub use ibex_transport::{
    node::{CloseReport, Undelivered, Wait},
    runtime::Driver,
    session::{Counts, EndCause, PeerNames, Suspension},
};
