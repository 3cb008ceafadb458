//! Errors of nodes and opens, and the shapes that `try_` and `_timeout` calls answer in.

use std::{io, net::SocketAddr};

use ibex_transport::{
    channel::{RecvError, RecvFailure, SendError, SendFailure},
    engine::session::CannotOpen,
};

/// A node could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is reachable from other hosts, and nothing protects it.
    #[error(
        "{address} is reachable from other hosts, and whoever connects may open channels: \
         listen on a loopback address, or call .insecure_network() on the builder if the \
         network itself keeps strangers out"
    )]
    InsecureAddress {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address cannot be resolved or bound.
    #[error("cannot listen on {address}: {source}; choose another address or port")]
    Address {
        /// The address as given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A setting is out of its range.
    #[error("{0}")]
    Setting(String),
    /// The process cannot have another node: threads, descriptors or memory are lacking.
    #[error("cannot start the node: {0}")]
    Environment(#[from] io::Error),
}

/// A peer could not be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The handshake did not come about.
    #[error(transparent)]
    Dial(#[from] ibex_bootstrap::DialError),
    /// The session could not be set up on this side.
    #[error("connected to {address}, but cannot set the session up: {source}")]
    Environment {
        /// The peer.
        address: String,
        /// What was lacking.
        source: io::Error,
    },
}

/// No peer was accepted, and none will be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The node has no listen address.
    #[error("this node does not listen: make it with Node::listen, or .listen(..) on the builder")]
    NotListening,
    /// The node was closed.
    #[error("this node was closed")]
    Closed,
    /// Nobody connected within the time-out.
    #[error("nobody connected within the time-out")]
    Timeout,
}

/// A channel's end could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open channel \"{channel}\" with {peer}: {reason}")]
#[non_exhaustive]
pub struct OpenError {
    /// The channel's name.
    pub channel: String,
    /// The peer.
    pub peer: String,
    /// Why.
    pub reason: String,
}

impl OpenError {
    pub(crate) fn new(channel: &str, peer: String, refused: &CannotOpen) -> Self {
        let reason = match refused {
            CannotOpen::AlreadyOpen => {
                "this end is open already; use or drop the first handle, or clone the sender"
                    .to_owned()
            }
            CannotOpen::TooMany { limit } => format!(
                "the session has {limit} open ends, its limit; drop some, or raise max_channels \
                 at both nodes"
            ),
            CannotOpen::SessionOver => "the session has ended; connect again".to_owned(),
            other => other.to_string(),
        };
        Self {
            channel: channel.to_owned(),
            peer,
            reason,
        }
    }
}

/// `try_send` did not send. The value stays with the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// The channel's window is full.
    #[error("the channel is full")]
    Full,
    /// The peer has not opened its end yet.
    #[error("the peer has not opened its end yet")]
    NotOpen,
    /// It will not work.
    #[error(transparent)]
    Failed(#[from] SendError),
}

impl TrySendError {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, TrySendError::Full | TrySendError::NotOpen)
    }

    pub(crate) fn of(failure: SendFailure) -> Self {
        match failure {
            SendFailure::Full | SendFailure::TimedOut => TrySendError::Full,
            SendFailure::NotOpen => TrySendError::NotOpen,
            SendFailure::Failed(error) => TrySendError::Failed(error),
        }
    }
}

/// `send_timeout` did not send. The value stays with the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendTimeoutError {
    /// The channel stayed full, or its other end unopened.
    #[error("not sent within the time-out")]
    Timeout,
    /// It will not work.
    #[error(transparent)]
    Failed(#[from] SendError),
}

impl SendTimeoutError {
    pub(crate) fn of(failure: SendFailure) -> Self {
        match failure {
            SendFailure::Failed(error) => SendTimeoutError::Failed(error),
            _ => SendTimeoutError::Timeout,
        }
    }
}

/// The failure of a call that waits for ever.
pub(crate) fn send_error(failure: SendFailure) -> SendError {
    match failure {
        SendFailure::Failed(error) => error,
        other => unreachable!("a call without a time-out ended with {other:?}"),
    }
}

/// `try_recv` found no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TryRecvError {
    /// Nothing is there.
    #[error("no message is there")]
    Empty,
    /// The peer has not opened its end yet.
    #[error("the peer has not opened its end yet")]
    NotOpen,
    /// No message will come.
    #[error(transparent)]
    Failed(#[from] RecvError),
}

impl TryRecvError {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, TryRecvError::Empty | TryRecvError::NotOpen)
    }

    pub(crate) fn of(failure: RecvFailure) -> Self {
        match failure {
            RecvFailure::Empty | RecvFailure::TimedOut => TryRecvError::Empty,
            RecvFailure::NotOpen => TryRecvError::NotOpen,
            RecvFailure::Failed(error) => TryRecvError::Failed(error),
        }
    }
}

/// `recv_timeout` got no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvTimeoutError {
    /// Nothing came.
    #[error("no message came within the time-out")]
    Timeout,
    /// No message will come.
    #[error(transparent)]
    Failed(#[from] RecvError),
}

impl RecvTimeoutError {
    pub(crate) fn of(failure: RecvFailure) -> Self {
        match failure {
            RecvFailure::Failed(error) => RecvTimeoutError::Failed(error),
            _ => RecvTimeoutError::Timeout,
        }
    }
}

pub(crate) fn recv_error(failure: RecvFailure) -> RecvError {
    match failure {
        RecvFailure::Failed(error) => error,
        other => unreachable!("a call without a time-out ended with {other:?}"),
    }
}
