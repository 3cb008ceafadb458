//! Peers that connect, for tasks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ibex_ring::parking::Ticket;

use crate::{ConnectError, Node, Peer};

/// A wait for the next peer that connects; see [`Node::accept_async`].
pub(crate) struct AcceptAsync<'a> {
    node: &'a Node,
    /// Each task keeps a ticket of its own, so that several may accept peers of one node.
    held: Option<Ticket>,
}

impl Node {
    /// The next peer that connected, for a task.
    ///
    /// Dropping the future loses no peer: it is there for the next call.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    pub fn accept_async(&self) -> impl Future<Output = Result<Peer, ConnectError>> {
        AcceptAsync {
            node: self,
            held: None,
        }
    }
}

impl Future for AcceptAsync<'_> {
    type Output = Result<Peer, ConnectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.node.check_listening()?;
        let accepted = this
            .node
            .runtime()
            .poll_accept(&mut this.held, context.waker());
        Poll::Ready(match ready!(accepted) {
            Some(session) => Ok(this.node.peer(session)),
            None => Err(this.node.accepts_no_more()),
        })
    }
}

impl Drop for AcceptAsync<'_> {
    fn drop(&mut self) {
        self.node.runtime().leave_accept(&mut self.held);
    }
}
