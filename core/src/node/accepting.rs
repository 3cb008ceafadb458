//! Accepting the peers that connect to a node.

use std::{
    task::{Poll, ready},
    time::{Duration, Instant},
};

use ibex_base::fork;
use ibex_ring::parking;

use super::Node;
use crate::{ConnectError, Peer};

impl Node {
    /// Returns the next peer that connected, and waits for one.
    ///
    /// Peers are returned in the order in which they connected. A peer that has gone since is
    /// returned too: its channels still hand out what it sent, and [`Peer::is_gone`] says that no
    /// more will come. If many peers wait to be accepted, those that have gone are left out.
    ///
    /// A node need not accept. With a [`FanIn`](crate::FanIn) for all of its peers, for example, it
    /// has no reason to. A session that ends before it is accepted keeps no descriptor.
    ///
    /// A connection that becomes no session costs nothing but itself. It may speak a foreign
    /// protocol or another version, or fall silent for `handshake_timeout`. It is closed, and
    /// logged as a [`tracing`] warning. The warning's field `failure` says which peer it was, at
    /// which step it failed, and why.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: the node does not listen, or was closed; closing it from another
    /// thread ends the wait.
    pub fn accept(&self) -> Result<Peer, ConnectError> {
        self.accept_until(None)
    }

    /// Returns the next peer that connected, and waits for one for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept), and [`Timeout`](crate::ConnectErrorKind::Timeout).
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Peer, ConnectError> {
        self.accept_until(Instant::now().checked_add(timeout))
    }

    /// Returns the next peer that connected, if there is one. Under [`Driver::Caller`](crate::Driver::Caller) it runs one
    /// turn; letting a peer in takes several.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    pub fn try_accept(&self) -> Result<Option<Peer>, ConnectError> {
        self.check_listening()?;
        match self.runtime().try_accept() {
            Some(session) => Ok(Some(self.peer(session))),
            None if self.runtime().accepts_no_more() => Err(self.accepts_no_more()),
            None => Ok(None),
        }
    }

    /// The next peer that connected, for a task.
    ///
    /// Dropping the future loses no peer: it is there for the next call.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    pub fn accept_async(&self) -> impl Future<Output = Result<Peer, ConnectError>> {
        // Each task keeps a ticket of its own, so that several may accept peers of one node.
        parking::future(
            None,
            |held, context| {
                self.check_listening()?;
                let accepted = ready!(self.runtime().poll_accept(held, context.waker()));
                let peer = accepted.map(|session| self.peer(session));
                Poll::Ready(peer.ok_or_else(|| self.accepts_no_more()))
            },
            |held| self.runtime().leave_accept(held),
        )
    }

    /// Stops accepting: peers that connect from now on get no session. Sessions, their channels and
    /// calls go on, and this node may still connect to others. It takes effect at once and cannot
    /// be undone. [`close`](Self::close) does it first as well.
    ///
    /// A peer's `connect` finds no node that takes it, and tries on within its time-out. If another
    /// process shares a socket of [`listen_on`](crate::NodeBuilder::listen_on), that process gets all new
    /// connections. A node with a socket of its own keeps its address, so that sessions whose
    /// connections broke can be resumed.
    ///
    /// [`accept`](Self::accept) still returns peers that had connected before. Then it fails with
    /// [`Stopped`](crate::ConnectErrorKind::Stopped), also in calls that are waiting. A peer in the
    /// middle of its handshake may become a session a moment later; a last `try_accept` finds it.
    pub fn stop_accepting(&self) {
        if !fork::is_child() {
            self.runtime().stop_accepting();
        }
    }

    /// Returns the reason why no more peers come.
    pub(crate) fn accepts_no_more(&self) -> ConnectError {
        ConnectError::accepts_no_more(self.runtime().is_closed())
    }

    fn accept_until(&self, deadline: Option<Instant>) -> Result<Peer, ConnectError> {
        self.check_listening()?;
        match self.runtime().accept(deadline) {
            Ok(Some(session)) => Ok(self.peer(session)),
            Ok(None) => Err(self.accepts_no_more()),
            Err(_) => Err(ConnectError::accepted_nobody()),
        }
    }

    pub(crate) fn check_listening(&self) -> Result<(), ConnectError> {
        self.check_fork()?;
        match self.local_addr() {
            None => Err(ConnectError::not_listening()),
            Some(_) if self.runtime().is_closed() => Err(self.accepts_no_more()),
            Some(_) => Ok(()),
        }
    }
}
