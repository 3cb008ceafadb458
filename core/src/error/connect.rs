//! The error of connecting.

use std::{fmt, io};

use ibex_base::{Address, fork::UsedAfterFork};
use ibex_bootstrap::{DialError, HandshakeError, negotiate::Party};

use super::failure::{ErrorReport, kinds, shell};

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
pub struct ConnectError(Box<ErrorReport<ConnectErrorKind, Option<DialError>>>);

kinds! {
    /// The kinds of a [`ConnectError`].
    pub enum ConnectErrorKind {
        /// The address cannot be read as `host:port` or `vsock:CID:PORT`.
        InvalidAddress => InvalidInput,
        /// No one answered within `connect_timeout`: the host name was not found, the port refused
        /// connections, or the host was silent.
        Unreachable => TimedOut,
        /// The program that answered does not speak ibex.
        Foreign => InvalidData,
        /// The peer has another version of the protocol, another kind of security, or no fabric in
        /// common with this node.
        Incompatible => InvalidData,
        /// One node did not accept the other's proof of its identity.
        Unauthenticated => PermissionDenied,
        /// The peer, or a limit of either node, refused the session.
        Refused => ConnectionRefused,
        /// The peer fell silent, closed the connection or broke the protocol during the handshake.
        Interrupted => ConnectionReset,
        /// The node has no engine of the number that [`connect_on`](crate::Node::connect_on) names.
        NoSuchEngine => InvalidInput,
        /// The node is to accept a peer and has no listen address.
        NotListening => InvalidInput,
        /// No peer connected within the time-out of
        /// [`accept_timeout`](crate::Node::accept_timeout).
        Timeout => TimedOut,
        /// The node [begins no session any more](crate::Node::stop_accepting), and all that it had
        /// begun were handed out.
        Stopped => ConnectionAborted,
        /// The node was closed.
        Closed => ConnectionAborted,
        /// The process lacks descriptors, threads or memory.
        Resources => Other,
        /// The process is a fork of the one that made the node.
        UsedAfterFork => Other,
    }
}

impl ConnectError {
    fn of(kind: ConnectErrorKind, text: impl fmt::Display) -> Self {
        Self(ErrorReport::new(kind, text))
    }

    /// Makes the error of a process that lacks what a session with `address` needs.
    pub(crate) fn environment(address: &str, error: &io::Error) -> Self {
        let step = ibex_bootstrap::shortage_step(error);
        Self::of(
            ConnectErrorKind::Resources,
            format_args!("connected to {address}, but cannot set the session up: {error}{step}"),
        )
    }

    /// Makes the error of a node whose runtime has ended, and the node with it.
    pub(crate) fn lost_runtime(address: &str) -> Self {
        Self::of(
            ConnectErrorKind::Closed,
            format_args!(
                "{address}: this node connects no more, since the tokio runtime whose tasks drove \
                 it has ended, and the node with it; make a node in a runtime that lives as long"
            ),
        )
    }

    /// Makes the error of a process that lacks a thread to keep peers connected.
    pub(crate) fn no_thread(error: &io::Error) -> Self {
        let step = ibex_bootstrap::shortage_step(error);
        Self::of(
            ConnectErrorKind::Resources,
            format_args!("cannot keep peers connected: {error}{step}"),
        )
    }

    /// Makes the error of a session with `address` that is to be placed on an engine beyond the
    /// last.
    pub(crate) fn no_such_engine(address: &str, engine: usize, engines: usize) -> Self {
        Self::of(
            ConnectErrorKind::NoSuchEngine,
            format_args!(
                "the session with {address} is to be on engine {engine}, and this node has \
                 {engines}, numbered from 0; name one of them, or give the node more io_threads"
            ),
        )
    }

    /// Makes the error of a call that waited for a peer: the time was up.
    pub(crate) fn accepted_nobody() -> Self {
        let text = "nobody connected within the time-out";
        Self::of(ConnectErrorKind::Timeout, text)
    }

    /// Makes the error of a node without a listen address that is to accept a peer.
    pub(crate) fn not_listening() -> Self {
        Self::of(
            ConnectErrorKind::NotListening,
            "this node does not listen: make it with Node::listen, or .listen(..) on the builder",
        )
    }

    /// Makes the error of a node that accepts no peer any more, because it was closed or was told
    /// to stop and has handed out all sessions that it had begun.
    pub(crate) fn accepts_no_more(is_closed: bool) -> Self {
        let (kind, text) = match is_closed {
            true => (
                ConnectErrorKind::Closed,
                "this node was closed; make another to accept with",
            ),
            false => (
                ConnectErrorKind::Stopped,
                "this node accepts nobody any more: stop_accepting was called",
            ),
        };
        Self::of(kind, text)
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> ConnectErrorKind {
        self.0.kind
    }

    /// Returns the address of the node that answered, if one did.
    #[must_use]
    pub fn peer(&self) -> Option<Address> {
        match self.dial_error()? {
            DialError::Handshake { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// Returns whether a later attempt may succeed without a change of settings or addresses.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        use ConnectErrorKind::{Interrupted, Refused, Resources, Timeout, Unreachable};
        let kind = self.kind();
        matches!(
            kind,
            Unreachable | Refused | Interrupted | Timeout | Resources
        )
    }

    /// The handshake's own error, for this repository's tests.
    #[doc(hidden)]
    #[must_use]
    pub fn dial_error(&self) -> Option<&DialError> {
        self.0.facts.as_ref()
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
        let mut report = ErrorReport::new(kind_of_dial(&error), &error);
        report.facts = Some(error);
        Self(report)
    }
}

impl From<UsedAfterFork> for ConnectError {
    fn from(error: UsedAfterFork) -> Self {
        Self::of(ConnectErrorKind::UsedAfterFork, error)
    }
}

shell!(ConnectError, |error| error.kind().io());

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
