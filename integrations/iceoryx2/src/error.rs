//! The errors of carriers and channels.

use std::io;

use ibex::{ConnectError, OpenError, SendError};

/// A carrier was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Only callers turn the node, and the carrier is no caller.
    #[error(
        "the node has Driver::Caller, and nobody would turn it for the carrier; build it with \
         Driver::Threads, or in a tokio runtime with Driver::Tasks"
    )]
    Driver,
    /// A setting of the control streams is out of its range.
    #[error(transparent)]
    Setting(#[from] OpenError),
    /// The node cannot keep its peers connected.
    #[error(transparent)]
    Peers(#[from] ConnectError),
    /// The process lacks a thread.
    #[error("no thread for the carrier: {0}")]
    Thread(#[from] io::Error),
}

/// The carrier carries nothing any more: its node was closed, or the carrier dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the carrier's node was closed or the carrier dropped; make another node and carrier")]
pub struct NotCarried;

/// A channel did not carry a frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A peer takes no frame of this length, and no other peer got it. The channel goes on.
    #[error("{0}; raise max_message_bytes at the nodes of both carriers")]
    TooLong(SendError),
    /// The carrier carries nothing any more.
    #[error("{NotCarried}")]
    NotCarried,
}
