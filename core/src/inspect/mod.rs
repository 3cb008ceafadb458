//! The socket at which a node answers what it is doing, for `ibex top` and other programs.
//!
//! A node that was built with [`inspect`](crate::NodeBuilder::inspect) listens on a Unix socket.
//! While nobody is connected, a thread sleeps there and nothing else happens: messages cost the
//! same as without. [`sockets`] lists the sockets of this user, in [`folders`].
//!
//! # The answer
//!
//! Whoever connects is sent a line of JSON at once, and another one for each empty line that it
//! sends. A client that sends anything else, or that does not read for a second, is cut off. Up to
//! 8 clients stay connected: the next one takes the place of the one that has not asked for longest.
//! Only processes of the node's user, and of root, get an answer.
//!
//! ```sh
//! socat - UNIX-CONNECT:$XDG_RUNTIME_DIR/ibex/4711-primary.sock < /dev/null
//! ```
//!
//! The line is an object whose member `version` is 1. Later releases of version 1 add members, and
//! neither remove nor rename any. Times of day are seconds since 1970, durations are nanoseconds,
//! and their names say so. A member that does not apply is left out. Texts that a peer chose are
//! escaped as in the log.
//!
//! | member | has |
//! |---|---|
//! | `version` | 1 |
//! | `pid`, `program` | the process, and the name of its program |
//! | `name`, `id`, `address`, `driver` | as in [`NodeStats`] |
//! | `age_ns` | how long ago the node was made |
//! | `environment` | the variables that replaced what the program said |
//! | `security` | `handshakes`, `failures` and `certificate_expires_unix_s` |
//! | `memory` | `limit_bytes` and `held_bytes` of [long messages](crate::NodeBuilder::memory_limit); with the feature `verbs` also `pinned_bytes`, which devices have registered, and `pinned_limit_bytes` |
//! | `totals` | what the node has counted since it was made: [`NodeTotals`](crate::stats::NodeTotals), with every [`SessionStats`](crate::stats::SessionStats) by its name in `counters` |
//! | `engines` | [`EngineStats`](crate::stats::EngineStats) of each engine |
//! | `slow` | the [slowest messages](crate::Node::slow_messages) of the last minute: `peer`, `address`, `name`, `channel`, `end`, `sequence`, `ago_ns`, `total_ns`, and the known [stages](crate::stats::MessageStages) in `stages` |
//! | `sessions` | [`NodeSession`](crate::stats::NodeSession): `peer`, `address`, `engine`, `name`, `authenticated_as`, `fabric`, `first_fabric`, `fabric_reason`, `state`, `suspension`, `completion_polling`, `counters`, and `channels` with the fields of [`ChannelStats`](crate::stats::ChannelStats) |
#![forbid(unsafe_code)]

mod answer;
mod inspector;
mod json;
mod socket_place;

pub(crate) use answer::Observed;
pub(crate) use inspector::Inspector;
pub(crate) use socket_place::SocketPlace;
pub use socket_place::{folders, sockets};

#[cfg(doc)]
use crate::stats::NodeStats;
