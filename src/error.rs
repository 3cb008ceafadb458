//! Errors of nodes and opens, and the shapes that `try_` and `_timeout` calls answer in.
//!
//! A text has its cause in it, so `source()` does not give that once more: a field that would
//! be taken for the source by its name is written `r#source`.

use std::{fmt, io, net::SocketAddr};

use ibex_base::fork::UsedAfterFork;
use ibex_protocol::{
    format::control::{MAX_NAME_BYTES, Role},
    session::CannotOpen,
};
use ibex_transport::{
    channel::{NoMessage, NotOpened, RecvError, RecvFailure, SendError, SendFailure, StayedFull},
    session::Interface,
};

use crate::{Fabric, SettingConflict, SettingError, VariableError};

/// A node could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is reachable from other hosts, and nothing protects it.
    #[error(
        "{address} is reachable from other hosts, and whoever connects may open channels: \
         authenticate peers with .security(..) on the builder (the feature `tls`), listen on a \
         loopback address, or call .insecure_network() if the network itself keeps strangers out"
    )]
    InsecureAddress {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address cannot be resolved or bound.
    #[error(
        "cannot listen on {address}: {source}; {}",
        ibex_bootstrap::ListenError::next_step(source)
    )]
    Address {
        /// The address as given.
        address: String,
        /// What the system said.
        r#source: io::Error,
    },
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Two settings do not go together.
    #[error(transparent)]
    Conflict(#[from] SettingConflict),
    /// A variable of the environment has a value that it cannot have.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The certificates or the secret cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Security(#[from] crate::SecurityError),
    /// A fabric is required that this build does not have.
    #[error(
        "{fabric} is required, and {fabric} is not compiled in: enable the feature `{fabric}` of \
         the crate ibex, or do not require it, in the program or by IBEX_FABRICS"
    )]
    NotCompiledIn {
        /// The fabric, and the feature's name.
        fabric: Fabric,
    },
    /// RDMA is required, or all that the policies leave, and no device can be used.
    #[cfg(feature = "verbs")]
    #[error("verbs is required, and this node cannot have it: {source}")]
    Rdma {
        /// What stands in the way.
        r#source: crate::rdma::VerbsError,
    },
    /// The node is to be driven by tasks, and there is no runtime for them.
    #[error("Driver::Tasks cannot be used here: {why}")]
    NoRuntime {
        /// The obstacle, and the next step.
        why: &'static str,
    },
    /// This process is a fork of one that has made a node.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
    /// The process cannot have another node: threads, descriptors or memory are lacking.
    #[error("cannot start the node: {_0}{step}", step = ibex_bootstrap::shortage_step(_0))]
    Environment(io::Error),
}

impl From<io::Error> for ListenError {
    fn from(error: io::Error) -> Self {
        ListenError::Environment(error)
    }
}

/// No peer was accepted, and none will be.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The node has no listen address.
    #[error("this node does not listen: make it with Node::listen, or .listen(..) on the builder")]
    NotListening,
    /// The node was closed.
    #[error("this node was closed; make another to accept with")]
    Closed,
    /// The node begins no session any more, and all that it had begun were handed out.
    #[error("this node accepts nobody any more: stop_accepting was called")]
    Stopped,
    /// Nobody connected within the time-out.
    #[error("nobody connected within the time-out")]
    Timeout,
    /// This process is a fork of the one that made the node.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

/// A channel's end could not be opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenError {
    /// The channel's name.
    pub channel: String,
    /// The peer.
    pub peer: String,
    /// The end that was to be opened.
    pub end: Role,
    /// Why.
    pub reason: OpenFailure,
    /// The interface that asked for it.
    pub(crate) interface: Interface,
    /// The interface that has it, if it is open already.
    pub(crate) holder: Interface,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            end,
            reason,
            interface,
            holder,
        } = self;
        let subject = interface.subject(channel, peer);
        match interface {
            Interface::Channel => write!(f, "cannot open the {end} of {subject}: ")?,
            Interface::Caller => write!(f, "cannot open a caller of {subject}: ")?,
            Interface::Service | Interface::Stream | Interface::Listener => {
                write!(f, "cannot open {subject}: ")?;
            }
        }
        match (reason, interface, holder) {
            (OpenFailure::AlreadyOpen, Interface::Channel, Interface::Channel) => reason.fmt(f),
            (OpenFailure::AlreadyOpen, _, _) => {
                write!(
                    f,
                    "this node has {holder} of this name with that peer already; "
                )?;
                f.write_str(match (interface, holder) {
                    (Interface::Caller, Interface::Caller) => {
                        "clone that one, or drop it and its clones first"
                    }
                    (Interface::Service, Interface::Service) => {
                        "take requests from that one, or drop it first"
                    }
                    _ => "choose another name, or drop what has it first",
                })
            }
            _ => reason.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a channel's end could not be opened.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFailure {
    /// This node has this end already. A name may be used once in each direction.
    #[error(
        "it is open already; use or drop the first handle (a sender can be cloned; a fan-in or \
         a service of the node has the receivers of its name)"
    )]
    AlreadyOpen,
    /// The session has as many open ends as its limit allows.
    #[error(
        "the session has {limit} open ends, its limit, with those that were dropped and that the \
         peer has not opened yet; drop some, let the peer open its own, or raise max_channels at \
         both nodes"
    )]
    TooMany {
        /// The limit, the smaller of both nodes'.
        limit: usize,
    },
    /// The session has ended, or is ending.
    #[error(
        "the session has ended, for the reason that the node's events tell; connect or accept \
         again, with a node that has not been closed"
    )]
    SessionOver,
    /// The node of this process was closed.
    #[error("this node was closed; make another and connect or accept with it")]
    NodeClosed,
    /// The kernel refused memory; the text says for what, and what would need less.
    #[error("{0}")]
    Memory(String),
    /// The name is empty or too long.
    #[error("its name has {bytes} bytes; it may have 1 to {MAX_NAME_BYTES}")]
    Name {
        /// The name's length.
        bytes: usize,
    },
    /// The message type needs an alignment that channels do not carry.
    #[error("the message type is aligned to {alignment}; channels carry 8, 16, 32 or 64")]
    Alignment {
        /// The alignment, in bytes.
        alignment: usize,
    },
    /// The two versions of a message type are the same bytes.
    #[error(
        "both of its versions are {schema}, so nothing tells their messages apart; open it with \
         one type, or rename a field whose meaning has changed"
    )]
    SameVersions {
        /// What both are.
        schema: String,
    },
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// This process is a fork of the one that made the node.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

impl OpenFailure {
    /// Returns whether no end of the session can be opened any more.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::SessionOver | Self::NodeClosed)
    }
}

impl From<CannotOpen> for OpenFailure {
    fn from(refused: CannotOpen) -> Self {
        match refused {
            CannotOpen::AlreadyOpen => OpenFailure::AlreadyOpen,
            CannotOpen::TooMany { limit } => OpenFailure::TooMany { limit },
            CannotOpen::SessionOver => OpenFailure::SessionOver,
            CannotOpen::Memory(why) => OpenFailure::Memory(why),
        }
    }
}

/// `try_send` did not send. The value stays with the caller.
///
/// [`Full`](Self::Full) and [`NotOpen`](Self::NotOpen) are answers of the hot path, which
/// whoever polls gets all the time, so they allocate nothing and name neither the channel nor
/// the peer: the caller knows both. `send_timeout` names them.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// The channel's window is full, or another clone of the sender has the turn, in a
    /// reservation or in a call that waits.
    #[error("the channel is full, or another clone of this sender has the turn")]
    Full,
    /// The peer has not opened its end yet.
    #[error("the peer has not opened its end yet")]
    NotOpen,
    /// It will not work.
    #[error(transparent)]
    Failed(#[from] SendError),
}

impl TrySendError {
    /// Whether it was too early: there is no room yet, or the peer has not opened its end. A
    /// lack of memory ([`SendError::Memory`]) may pass as well, and is not meant.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, TrySendError::Full | TrySendError::NotOpen)
    }

    pub(crate) fn of(failure: SendFailure) -> Self {
        match failure {
            SendFailure::Full | SendFailure::TimedOut(_) => TrySendError::Full,
            SendFailure::NotOpen | SendFailure::NotOpenInTime(_) => TrySendError::NotOpen,
            SendFailure::Failed(error) => TrySendError::Failed(error),
        }
    }
}

/// `send_timeout` did not send, or `opened` did not see the peer's end. The value stays
/// with the caller.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SendTimeoutError {
    /// The channel stayed full, or another clone of the sender had the turn.
    #[error(transparent)]
    Timeout(Box<StayedFull>),
    /// The peer did not open its end within the time-out.
    #[error(transparent)]
    NotOpen(Box<NotOpened>),
    /// It will not work.
    #[error(transparent)]
    Failed(#[from] SendError),
}

impl SendTimeoutError {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, SendTimeoutError::Failed(_))
    }

    pub(crate) fn of(failure: SendFailure) -> Self {
        match failure {
            SendFailure::Failed(error) => SendTimeoutError::Failed(error),
            SendFailure::NotOpenInTime(error) => SendTimeoutError::NotOpen(error),
            SendFailure::TimedOut(error) => SendTimeoutError::Timeout(error),
            other @ (SendFailure::Full | SendFailure::NotOpen) => {
                unreachable!("a call with a time-out ended with {other:?}")
            }
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
///
/// [`Empty`](Self::Empty) and [`NotOpen`](Self::NotOpen) are answers of the hot path, which
/// whoever polls gets all the time, so they allocate nothing and name neither the channel nor
/// the peer: the caller knows both. `recv_timeout` names them.
#[derive(thiserror::Error)]
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
            RecvFailure::Empty | RecvFailure::TimedOut(_) => TryRecvError::Empty,
            RecvFailure::NotOpen | RecvFailure::NotOpenInTime(_) => TryRecvError::NotOpen,
            RecvFailure::Failed(error) => TryRecvError::Failed(error),
        }
    }
}

/// `recv_timeout` got no message, or `opened` did not see the peer's end.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RecvTimeoutError {
    /// Nothing came.
    #[error(transparent)]
    Timeout(Box<NoMessage>),
    /// The peer did not open its end within the time-out.
    #[error(transparent)]
    NotOpen(Box<NotOpened>),
    /// No message will come.
    #[error(transparent)]
    Failed(#[from] RecvError),
}

impl RecvTimeoutError {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, RecvTimeoutError::Failed(_))
    }

    pub(crate) fn of(failure: RecvFailure) -> Self {
        match failure {
            RecvFailure::Failed(error) => RecvTimeoutError::Failed(error),
            RecvFailure::NotOpenInTime(error) => RecvTimeoutError::NotOpen(error),
            RecvFailure::TimedOut(error) => RecvTimeoutError::Timeout(error),
            other @ (RecvFailure::Empty | RecvFailure::NotOpen) => {
                unreachable!("a call with a time-out ended with {other:?}")
            }
        }
    }
}

pub(crate) fn recv_error(failure: RecvFailure) -> RecvError {
    match failure {
        RecvFailure::Failed(error) => error,
        other => unreachable!("a call without a time-out ended with {other:?}"),
    }
}

ibex_base::debug_as_display!(
    ListenError,
    AcceptError,
    OpenError,
    OpenFailure,
    TrySendError,
    SendTimeoutError,
    TryRecvError,
    RecvTimeoutError,
);

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::ConnectError;

    /// Whoever prints an error with its sources, as anyhow does, is to read each cause once.
    #[test]
    fn a_cause_that_the_text_tells_is_not_told_again_as_the_source() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let address = || "replica:7000".to_owned();
        let errors: [Box<dyn Error>; 5] = [
            Box::new(ListenError::Address {
                address: address(),
                source: refused(),
            }),
            Box::new(ListenError::from(refused())),
            Box::new(ConnectError::environment(&address(), refused())),
            Box::new(ConnectError::from(
                ibex_bootstrap::DialError::InvalidAddress {
                    address: address(),
                    source: refused(),
                },
            )),
            Box::new(OpenError {
                channel: "wal".to_owned(),
                peer: address(),
                end: Role::Sender,
                reason: OpenFailure::SessionOver,
                interface: Interface::Channel,
                holder: Interface::Channel,
            }),
        ];
        for error in errors {
            assert!(error.source().is_none(), "{error}");
        }
    }
}
