//! The connections of a server.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::FusedStream;
use ibex::{
    Node, PeerAt,
    io::{Listener, Stream},
};
use ibex_core::extend::warn_limited;
use tokio::time::{Sleep, sleep};

use crate::NAME;

/// The byte streams that clients connect, for the loop of a server to accept.
///
/// It is a [`Listener`] that continues if one connection could not be opened: it logs the error,
/// waits for 100 ms and tries again, as servers do with a socket's `accept`. Only the end of the
/// node ends it. Dropping it refuses connections that it has not accepted; accepted ones continue.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    /// The pause after an error.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    /// Accepts connections to this node by the name [`NAME`].
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`].
    pub fn bind(node: &Node) -> io::Result<Self> {
        Listener::bind(node, NAME).map(Self::from)
    }

    /// Returns the next connection, and the peer that it comes from. Dropping the future loses
    /// none.
    ///
    /// # Errors
    ///
    /// [`ConnectionAborted`](io::ErrorKind::ConnectionAborted): the node was closed, and nothing
    /// more comes.
    pub async fn accept(&mut self) -> io::Result<(Stream, PeerAt)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    /// Polls for the next connection, as [`accept`](Self::accept) does.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    ///
    /// # Panics
    ///
    /// After an error that is no end, if it is polled outside a runtime of tokio whose time is
    /// enabled.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(Stream, PeerAt)>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok(accepted) => return Poll::Ready(Ok(accepted)),
                Err(error) if self.listener.is_terminated() => return Poll::Ready(Err(error)),
                Err(error) => {
                    let listener = self.listener.name();
                    warn_limited!(error, listener, %error, "cannot accept");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

impl From<Listener> for Incoming {
    fn from(listener: Listener) -> Self {
        Self {
            listener,
            pause: None,
        }
    }
}

const PAUSE: Duration = Duration::from_millis(100);
