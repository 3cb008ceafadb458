//! What a node has counted: snapshots of it, of its sessions and of their channels, and how long
//! calls and messages took.
//!
//! [`Node::stats`](crate::Node::stats) returns all of it, [`Peer::stats`](crate::Peer::stats) the
//! part of one session, and [`Node::slow_messages`](crate::Node::slow_messages) the messages that
//! took long. The guide has a page on [watching](https://docs.rs/ibex/latest/ibex/guide/watching/index.html) a node.

mod node_stats;
mod slow_message;

#[cfg(feature = "verbs")]
pub use self::node_stats::PortCounters;
pub(crate) use self::node_stats::of_engines;
pub use self::node_stats::{EngineStats, NodeSession, NodeStats, NodeTotals, SessionState};
pub use self::slow_message::SlowMessage;
pub use ibex_base::tls::SecurityStats;
pub use ibex_transport::{
    endpoint::stats::{ChannelState, ChannelStats},
    histogram::Histogram,
    node::{Measured, MessageStages, NodeHistogram},
    session::SessionStats,
};
