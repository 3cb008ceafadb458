//! Errors: one for each thing that a program asks for.
//!
//! A text has its cause in it, so `source()` does not give that once more: a field that would
//! be taken for the source by its name is written `r#source`.

use std::{fmt, io, net::SocketAddr};

use ibex_base::fork::UsedAfterFork;
use ibex_protocol::{
    format::control::{MAX_NAME_BYTES, Role},
    session::CannotOpen,
};
use ibex_transport::session::Interface;

pub use self::{
    connect::{ConnectError, ConnectErrorKind},
    receive::{RecvError, RecvErrorKind},
    send::{SendError, SendErrorKind},
    wait::{WaitError, WaitErrorKind},
};

use crate::{Fabric, SettingConflict, SettingError, VariableError};

mod connect;
mod receive;
mod send;
mod wait;

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

/// The channel and the peer that an error is about.
#[derive(Clone, Copy)]
struct Subject<'a> {
    channel: &'a str,
    peer: &'a str,
}

impl<'a> Subject<'a> {
    fn new(channel: &'a str, peer: &'a str) -> Option<Self> {
        Some(Self { channel, peer })
    }
}

ibex_base::debug_as_display!(ListenError, AcceptError, OpenError, OpenFailure,);

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
