//! axum's trait for listeners.

use std::{future, io};

use axum::serve::Listener;
use ibex::{PeerAt, io::Stream};

use crate::Incoming;

/// A listener for `axum::serve`. After the end of its node it accepts nothing more: the server
/// waits for its graceful shutdown.
impl Listener for Incoming {
    type Io = Stream;
    type Addr = Option<PeerAt>;

    async fn accept(&mut self) -> (Stream, Option<PeerAt>) {
        match Incoming::accept(self).await {
            Ok((stream, peer)) => (stream, Some(peer)),
            Err(error) => {
                tracing::info!(%error, "no more connections come");
                future::pending().await
            }
        }
    }

    /// Returns `None`: connections come to the node, over each fabric that it has.
    fn local_addr(&self) -> io::Result<Option<PeerAt>> {
        Ok(None)
    }
}
