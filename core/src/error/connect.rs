//! The error of connecting.

use std::{fmt, io};

use ibex_base::{Address, fork::UsedAfterFork};
use ibex_bootstrap::{DialError, HandshakeError, negotiate::Party};

/// The error of [`Node::connect`](crate::Node::connect), [`Node::accept`](crate::Node::accept) and
/// `Node::keep_connected`: no session with a peer.
///
/// Its text says which address was dialed, what happened there, what follows and what to do, or
/// why the node accepts no peer. Programs decide by [`kind`](Self::kind).
///
/// ```
/// use ibex::{ConnectErrorKind, Node, Peer};
///
/// /// Connects, or says that this replica is not up yet.
/// fn replica(node: &Node, address: &str) -> Result<Option<Peer>, ibex::ConnectError> {
///     match node.connect(address) {
///         Ok(peer) => Ok(Some(peer)),
///         Err(error) if error.kind() == ConnectErrorKind::Unreachable => Ok(None),
///         Err(error) => Err(error),
///     }
/// }
/// ```
///
/// | kind | what helps |
/// |---|---|
/// | [`InvalidAddress`](ConnectErrorKind::InvalidAddress) | an address as `host:port` or `vsock:CID:PORT` |
/// | [`Unreachable`](ConnectErrorKind::Unreachable) | a later attempt, or a look at the host, the port and the firewall |
/// | [`Foreign`](ConnectErrorKind::Foreign) | another port |
/// | [`Incompatible`](ConnectErrorKind::Incompatible) | the same release, kind of security and fabrics at both nodes; the text names the difference |
/// | [`Unauthenticated`](ConnectErrorKind::Unauthenticated) | another secret or certificate; the text says whose and why |
/// | [`Refused`](ConnectErrorKind::Refused) | a later attempt, or a higher limit |
/// | [`Interrupted`](ConnectErrorKind::Interrupted) | a later attempt |
/// | [`NoSuchEngine`](ConnectErrorKind::NoSuchEngine) | an engine that [`io_threads`](crate::NodeBuilder::io_threads) gave the node |
/// | [`NotListening`](ConnectErrorKind::NotListening) | a node with a listen address |
/// | [`Timeout`](ConnectErrorKind::Timeout) | a later attempt to accept |
/// | [`Stopped`](ConnectErrorKind::Stopped), [`Closed`](ConnectErrorKind::Closed) | another node |
/// | [`Resources`](ConnectErrorKind::Resources) | more descriptors (`ulimit -n`), threads or memory, and a later attempt |
/// | [`UsedAfterFork`](ConnectErrorKind::UsedAfterFork) | a node that this process makes |
pub struct ConnectError(Box<ConnectFailure>);

/// The kinds of a [`ConnectError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The address cannot be read as `host:port` or `vsock:CID:PORT`.
    InvalidAddress,
    /// No one answered within `connect_timeout`: the host name was not found, the port refused
    /// connections, or the host was silent.
    Unreachable,
    /// The program that answered does not speak ibex.
    Foreign,
    /// The peer has another version of the protocol, another kind of security, or no fabric in
    /// common with this node.
    Incompatible,
    /// One node did not accept the other's proof of its identity.
    Unauthenticated,
    /// The peer, or a limit of either node, refused the session.
    Refused,
    /// The peer fell silent, closed the connection or broke the protocol during the handshake.
    Interrupted,
    /// The node has no engine of the number that [`connect_on`](crate::Node::connect_on) names.
    NoSuchEngine,
    /// The node is to accept a peer and has no listen address.
    NotListening,
    /// No peer connected within the time-out of
    /// [`accept_timeout`](crate::Node::accept_timeout).
    Timeout,
    /// The node [begins no session any more](crate::Node::stop_accepting), and all that it had
    /// begun were handed out.
    Stopped,
    /// The node was closed.
    Closed,
    /// The process lacks descriptors, threads or memory.
    Resources,
    /// The process is a fork of the one that made the node.
    UsedAfterFork,
}

/// The failure that ended the attempt.
enum ConnectFailure {
    /// The handshake failed.
    Dial(DialError),
    /// The session could not be set up on this side.
    Environment { address: String, error: io::Error },
    /// The session is to be on an engine that the node does not have.
    NoSuchEngine {
        address: String,
        engine: usize,
        engines: usize,
    },
    /// The node was driven by a runtime that has ended.
    LostRuntime { address: String },
    /// Peers cannot be kept connected, as there is no thread for it.
    NoThread(io::Error),
    /// No peer was accepted.
    Accept(NotAccepted),
    /// The process is a fork.
    UsedAfterFork(UsedAfterFork),
}

/// The reason for which no peer was accepted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// The node has no listen address.
    #[error("this node does not listen: make it with Node::listen, or .listen(..) on the builder")]
    NotListening,
    /// The node accepts no peer, because it was closed.
    #[error("this node was closed; make another to accept with")]
    Closed,
    /// The node begins no session any more, and all that it had begun were handed out.
    #[error("this node accepts nobody any more: stop_accepting was called")]
    Stopped,
    /// No peer connected within the time-out.
    #[error("nobody connected within the time-out")]
    Timeout,
}

impl ConnectError {
    /// Makes the error of a process that lacks what a session with `address` needs.
    pub(crate) fn environment(address: &str, error: io::Error) -> Self {
        let address = address.to_owned();
        Self(Box::new(ConnectFailure::Environment { address, error }))
    }

    /// Makes the error of a node whose runtime has ended, and the node with it.
    pub(crate) fn lost_runtime(address: String) -> Self {
        Self(Box::new(ConnectFailure::LostRuntime { address }))
    }

    /// Makes the error of a process that lacks a thread to keep peers connected.
    pub(crate) fn no_thread(error: io::Error) -> Self {
        Self(Box::new(ConnectFailure::NoThread(error)))
    }

    /// Makes the error of a session with `address` that is to be placed on an engine beyond the
    /// last.
    pub(crate) fn no_such_engine(address: String, engine: usize, engines: usize) -> Self {
        Self(Box::new(ConnectFailure::NoSuchEngine {
            address,
            engine,
            engines,
        }))
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> ConnectErrorKind {
        match &*self.0 {
            ConnectFailure::Dial(error) => kind_of_dial(error),
            ConnectFailure::Environment { .. } | ConnectFailure::NoThread(_) => {
                ConnectErrorKind::Resources
            }
            ConnectFailure::LostRuntime { .. } => ConnectErrorKind::Closed,
            ConnectFailure::NoSuchEngine { .. } => ConnectErrorKind::NoSuchEngine,
            ConnectFailure::Accept(NotAccepted::NotListening) => ConnectErrorKind::NotListening,
            ConnectFailure::Accept(NotAccepted::Closed) => ConnectErrorKind::Closed,
            ConnectFailure::Accept(NotAccepted::Stopped) => ConnectErrorKind::Stopped,
            ConnectFailure::Accept(NotAccepted::Timeout) => ConnectErrorKind::Timeout,
            ConnectFailure::UsedAfterFork(_) => ConnectErrorKind::UsedAfterFork,
        }
    }

    /// Returns the address of the node that answered, if one did.
    #[must_use]
    pub fn peer(&self) -> Option<Address> {
        match &*self.0 {
            ConnectFailure::Dial(DialError::Handshake { peer, .. }) => Some(*peer),
            _ => None,
        }
    }

    /// Returns whether a later attempt may succeed without a change of settings or addresses.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind(),
            ConnectErrorKind::Unreachable
                | ConnectErrorKind::Refused
                | ConnectErrorKind::Interrupted
                | ConnectErrorKind::Timeout
                | ConnectErrorKind::Resources
        )
    }

    /// The handshake's own error, for this repository's tests.
    #[doc(hidden)]
    #[must_use]
    pub fn dial_error(&self) -> Option<&DialError> {
        match &*self.0 {
            ConnectFailure::Dial(error) => Some(error),
            _ => None,
        }
    }
}

fn kind_of_dial(error: &DialError) -> ConnectErrorKind {
    match error {
        DialError::InvalidAddress { .. } => ConnectErrorKind::InvalidAddress,
        DialError::Handshake { source, .. } => kind_of_handshake(source),
        DialError::Cancelled { .. } => ConnectErrorKind::Closed,
        DialError::Environment { .. } => ConnectErrorKind::Resources,
        // The variants `Unresolved`, `Refused` and `Nobody`.
        _ => ConnectErrorKind::Unreachable,
    }
}

fn kind_of_handshake(error: &HandshakeError) -> ConnectErrorKind {
    match error {
        HandshakeError::NotIbex { .. } => ConnectErrorKind::Foreign,
        HandshakeError::Authentication(_) => ConnectErrorKind::Unauthenticated,
        HandshakeError::Version { .. }
        | HandshakeError::Security { .. }
        | HandshakeError::Fabric(_) => ConnectErrorKind::Incompatible,
        HandshakeError::Descriptors {
            end: Party::Dialer, ..
        } => ConnectErrorKind::Resources,
        HandshakeError::Silent { .. }
        | HandshakeError::Slow { .. }
        | HandshakeError::Closed { .. }
        | HandshakeError::Malformed { .. }
        | HandshakeError::Garbled { .. }
        | HandshakeError::OutOfTurn { .. } => ConnectErrorKind::Interrupted,
        _ => ConnectErrorKind::Refused,
    }
}

impl From<DialError> for ConnectError {
    fn from(error: DialError) -> Self {
        Self(Box::new(ConnectFailure::Dial(error)))
    }
}

impl From<NotAccepted> for ConnectError {
    fn from(reason: NotAccepted) -> Self {
        Self(Box::new(ConnectFailure::Accept(reason)))
    }
}

impl From<UsedAfterFork> for ConnectError {
    fn from(error: UsedAfterFork) -> Self {
        Self(Box::new(ConnectFailure::UsedAfterFork(error)))
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            ConnectFailure::Dial(error) => error.fmt(f),
            ConnectFailure::Environment { address, error } => write!(
                f,
                "connected to {address}, but cannot set the session up: {error}{}",
                ibex_bootstrap::shortage_step(error)
            ),
            ConnectFailure::NoSuchEngine {
                address,
                engine,
                engines,
            } => write!(
                f,
                "the session with {address} is to be on engine {engine}, and this node has \
                 {engines}, numbered from 0; name one of them, or give the node more io_threads"
            ),
            ConnectFailure::LostRuntime { address } => write!(
                f,
                "{address}: this node connects no more, since the tokio runtime whose tasks drove \
                 it has ended, and the node with it; make a node in a runtime that lives as long"
            ),
            ConnectFailure::NoThread(error) => write!(
                f,
                "cannot keep peers connected: {error}{}",
                ibex_bootstrap::shortage_step(error)
            ),
            ConnectFailure::Accept(reason) => reason.fmt(f),
            ConnectFailure::UsedAfterFork(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

ibex_base::debug_as_display!(ConnectError, NotAccepted);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_refuses_may_be_tried_again_and_an_address_that_is_none_may_not() {
        let refused = ConnectError::from(DialError::Refused {
            address: "replica:7000".to_owned(),
            waited: std::time::Duration::from_secs(1),
            attempts: 3,
            last: "10.0.0.2:7000 refused".to_owned(),
        });
        assert_eq!(refused.kind(), ConnectErrorKind::Unreachable);
        assert!(refused.is_transient() && refused.peer().is_none());
        let invalid = ConnectError::from(DialError::InvalidAddress {
            address: "replica".to_owned(),
            source: io::Error::from(io::ErrorKind::InvalidInput),
        });
        assert_eq!(invalid.kind(), ConnectErrorKind::InvalidAddress);
        assert!(!invalid.is_transient());
    }

    #[test]
    fn a_connect_error_names_the_foreign_server_that_answered() {
        let peer: Address = "10.0.0.2:80".parse().expect("an address");
        let error = ConnectError::from(DialError::Handshake {
            address: "replica:80".to_owned(),
            peer,
            source: HandshakeError::NotIbex {
                seen: "HTTP/1.1".to_owned(),
            },
        });
        assert_eq!(
            (error.kind(), error.peer()),
            (ConnectErrorKind::Foreign, Some(peer))
        );
    }
}
