//! The connections of a server.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use ibex::{Node, io::Listener};

use crate::Connection;

/// The connections that clients make, for `serve_with_incoming`.
///
/// A connection that could not be opened is logged and does not end the server; the end of the node
/// does. See [`ibex_hyper::Incoming`].
#[derive(Debug)]
pub struct Incoming {
    /// `None` after the end of the node.
    connections: Option<ibex_hyper::Incoming>,
}

impl Incoming {
    /// Accepts connections to this node by the name [`NAME`](crate::NAME).
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`].
    pub fn bind(node: &Node) -> io::Result<Self> {
        ibex_hyper::Incoming::bind(node).map(Self::from)
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Connection>>> {
        let Some(connections) = &mut self.connections else {
            return Poll::Ready(None);
        };
        match ready!(connections.poll_accept(context)) {
            Ok((stream, peer)) => Poll::Ready(Some(Ok(Connection::new(stream, peer)))),
            Err(_) => {
                self.connections = None;
                Poll::Ready(None)
            }
        }
    }
}

impl From<ibex_hyper::Incoming> for Incoming {
    fn from(connections: ibex_hyper::Incoming) -> Self {
        Self {
            connections: Some(connections),
        }
    }
}

impl From<Listener> for Incoming {
    fn from(listener: Listener) -> Self {
        ibex_hyper::Incoming::from(listener).into()
    }
}
