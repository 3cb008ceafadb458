//! iceoryx2 between hosts: a carrier for its link, over RDMA, tcp and shared memory.
//!
//! iceoryx2's link joins the services of one system to those of others, and leaves the transport to
//! a carrier. [`IbexCarrier`] is a carrier: over RDMA verbs if both hosts have a device, over tcp
//! elsewhere. Applications stay as they are; one program on each host runs the link:
//!
//! ```no_run
//! use ibex::Node;
//! use ibex_iceoryx2::IbexCarrier;
//! use iceoryx2::prelude::*;
//! use iceoryx2_link::Link;
//! use iceoryx2_link_tunnel::Tunnel;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::builder().listen("10.0.0.1:7000").insecure_network().build()?;
//! let carrier = IbexCarrier::new(node, ["10.0.0.2:7000"])?;
//!
//! let config = Config::global_config();
//! let iceoryx2 = NodeBuilder::new().config(config).create::<ipc::Service>()?;
//! let mut link = Link::new(iceoryx2, Tunnel::new(carrier, config));
//! let woken = link.listener()?;                 // there is no need to poll
//! loop {
//!     link.discover()?;
//!     link.propagate()?;
//!     let local = std::time::Duration::from_millis(1);
//!     woken.timed_wait(|_| {}, local)?;         // this system's own samples wake nobody
//! }
//! # }
//! ```
//!
//! # How it works
//!
//! Each carrier has one session with each peer, and reports its offers and open channels in the
//! order in which they changed. Two open channels of one descriptor (name, hash and types, all of
//! them alike) make a pair, which has an ibex channel in each direction. A slow peer therefore
//! fills only its own windows; a frame that finds a full window is dropped for that peer and
//! [counted](ServiceStats::dropped). A session outlives its connection, like every session of ibex.
//! When a session is over, the peer's offers go with it, and the peer is dialed again.
//!
//! A frame is copied into the memory from which it is sent, and lent to the link where it arrived.
//!
//! # Limits
//!
//! * Only publish-subscribe and events are carried, which is all that the link of iceoryx2 0.10
//!   supports. The link and its crates are pinned to that release.
//! * A frame has up to [`max_message_bytes`](ibex::NodeBuilder::max_message_bytes) (16 MiB). A pair
//!   may have up to [`max_unreleased_bytes`](ibex::NodeBuilder::max_unreleased_bytes) waiting,
//!   which is [memory](ibex::NodeBuilder#memory) at both ends.
//! * A pair takes two of a session's [`max_channels`](ibex::NodeBuilder::max_channels) (1024), so
//!   two carriers share up to 511 services by default.
//! * From one peer 4096 services and 4096 open channels are accepted; more are left out, with a
//!   warning.
//! * Payloads travel as they lie in memory, as the link requires: both systems need the same layout
//!   of the types and the same byte order.
//! * Nothing authenticates peers: see
//!   [`insecure_network`](ibex::NodeBuilder::insecure_network).
//! * A frame is sent once for each peer; there is no multicast.
//!
//! In addition to the node's own I/O thread, a carrier has a thread, which sleeps while nothing
//! changes.
//!
//! # Cargo features
//!
//! `verbs` enables the feature of that name in the crate ibex: the fabric over RDMA.
#![forbid(unsafe_code)]

mod carrier;
mod channel;
mod control;
mod ends;
mod error;
mod monitor;
mod remote;
mod session;
mod shared;
#[cfg(test)]
mod testing;
mod worker;

pub use carrier::IbexCarrier;
pub use channel::IbexChannel;
pub use error::{ChannelError, NotCarried, StartError};
pub use monitor::{CarrierStats, Monitor, PeerStats, ServiceStats};
