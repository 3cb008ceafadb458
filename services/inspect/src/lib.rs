//! The socket at which a node answers what it is doing, for `ibex top` and other programs.
//!
//! A node that was built with [`inspect`](InspectSettings::inspect) listens on a Unix socket.
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
//! | `name`, `id`, `address`, `driver` | as in [`NodeStats`](ibex_core::stats::NodeStats) |
//! | `age_ns` | how long ago the node was made |
//! | `environment` | the variables that replaced what the program said |
//! | `security` | `handshakes`, `failures` and `certificate_expires_unix_s` |
//! | `memory` | `limit_bytes` and `held_bytes` of [long messages](NodeBuilder::memory_limit); with the feature `verbs` also `pinned_bytes`, which devices have registered, and `pinned_limit_bytes` |
//! | `totals` | what the node has counted since it was made: [`NodeTotals`](ibex_core::stats::NodeTotals), with every [`SessionStats`](ibex_core::stats::SessionStats) by its name in `counters` |
//! | `engines` | [`EngineStats`](ibex_core::stats::EngineStats) of each engine |
//! | `slow` | the [slowest messages](Node::slow_messages) of the last minute: `peer`, `address`, `name`, `channel`, `end`, `sequence`, `ago_ns`, `total_ns`, and the known [stages](ibex_core::stats::MessageStages) in `stages` |
//! | `sessions` | [`NodeSession`](ibex_core::stats::NodeSession): `peer`, `address`, `engine`, `name`, `authenticated_as`, `fabric`, `first_fabric`, `fabric_reason`, `state`, `suspension`, `completion_polling`, `counters`, and `channels` with the fields of [`ChannelStats`](ibex_core::stats::ChannelStats) |
#![forbid(unsafe_code)]

mod answer;
mod inspector;
mod socket_place;

use std::path::{Path, PathBuf};

use ibex_core::{
    Node, NodeBuilder,
    extend::{self, NodePart},
};

use self::{inspector::Inspector, socket_place::SocketPlace};
pub use socket_place::{folders, sockets};

/// Lets other programs inspect a node.
pub trait InspectSettings {
    /// Lets `ibex top` and other programs of this user inspect the running node, over a Unix socket
    /// in a folder of the user that nobody else may enter. By default nobody can.
    ///
    /// The socket is `$XDG_RUNTIME_DIR/ibex/PID-NAME.sock`, or in the next of [these folders](folders)
    /// that can be had; [`path_of`] returns it. NAME is that of the
    /// node, if it has one. If there can be no socket, the node begins all the same, and the log has a
    /// warning. [`ibex::inspect`](crate) says what is answered there, and to whom.
    ///
    /// The node has a thread for it, under each driver, which sleeps while nobody is connected. An
    /// answer holds each engine's lock for some 100 ns for each channel. Such a node also keeps its
    /// [slowest messages](Node::slow_messages).
    ///
    /// ```
    /// use ibex::prelude::*;
    ///
    /// # fn main() -> Result<(), ibex::ListenError> {
    /// let node = ibex::Node::builder().name("primary").inspect().build()?;
    /// println!("{:?}", ibex::inspect::path_of(&node)); // /run/user/1000/ibex/4711-primary.sock
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "a builder does nothing until `build`"]
    fn inspect(self) -> Self;

    /// Lets programs of this user inspect the node at a path, in place of
    /// [`inspect`](Self::inspect). The last of the two calls counts. The path is one where there is
    /// no file yet, or the socket of a node that is gone. It has 107 bytes at most. A node that
    /// cannot listen there is not made: [`ListenErrorKind::Part`](ibex_core::ListenErrorKind::Part).
    #[must_use = "a builder does nothing until `build`"]
    fn inspect_at(self, path: impl Into<PathBuf>) -> Self;
}

impl InspectSettings for NodeBuilder {
    fn inspect(self) -> Self {
        inspected(self, SocketPlace::Default)
    }

    fn inspect_at(self, path: impl Into<PathBuf>) -> Self {
        inspected(self, SocketPlace::At(path.into()))
    }
}

fn inspected(builder: NodeBuilder, place: SocketPlace) -> NodeBuilder {
    let part = NodePart::new(move |view| Inspector::start(&place, view));
    part.with_times_of_messages().add_to(builder)
}

/// Returns the path of the socket at which a node is inspected, if it was built with
/// [`inspect`](InspectSettings::inspect) and could have one.
#[must_use]
pub fn path_of(node: &Node) -> Option<&Path> {
    extend::part(node).map(Inspector::path)
}
