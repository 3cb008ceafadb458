//! The connector of clients.

use std::{
    collections::HashMap,
    error::Error,
    fmt,
    future::Future,
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use ibex::{ConnectError, Node, Peer, io::Stream};
use tokio::{sync::Mutex as AsyncMutex, time::timeout};
use tower_service::Service;

use crate::{Connection, NAME};

/// Opens a connection for a URI: a byte stream to the [`Incoming`](crate::Incoming) of the node
/// that listens at the URI's host and port.
///
/// The connector is a service from [`Uri`]s to [`Connection`]s. hyper-util's client takes it,
/// tonic's `Endpoint::connect_with_connector`, and hyper-rustls to put TLS around. Clones share the
/// sessions: all connections to one address use one session, which is made again if it has ended. A
/// URI without a port means 80, or 443 with `https`.
///
/// # Errors
///
/// An [`io::Error`] of the kind that a socket's would have, with the error of ibex within:
/// that of [`Node::connect_async`], or of [`connect_async`].
/// [`TimedOut`](ErrorKind::TimedOut): the time of [`connect_timeout`](Self::connect_timeout) is
/// up; there may be a node and no listener of the name. [`InvalidInput`](ErrorKind::InvalidInput):
/// the URI names no host.
///
/// # Panics
///
/// If the connector is called outside a runtime of tokio whose time is enabled.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<Shared>,
    name: Arc<str>,
    timeout: Duration,
}

struct Shared {
    node: Node,
    /// The session with each address. A connecting task holds the lock of its address alone, so
    /// that two connections make one session.
    sessions: Mutex<HashMap<String, Arc<AsyncMutex<Option<Peer>>>>>,
}

/// Future of a [`Connector`]'s connection. Dropping it takes the request back.
pub type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;

impl Connector {
    /// Creates a connector over this node, for listeners of the name [`NAME`].
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self {
            shared: Arc::new(Shared {
                node,
                sessions: Mutex::default(),
            }),
            name: NAME.into(),
            timeout: CONNECT_TIMEOUT,
        }
    }

    /// Sets the name of the listener.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how long a connection may take until it is accepted; 10 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn connect(self, uri: Uri) -> io::Result<Connection> {
        let address = address_of(&uri)?;
        let connecting = self.shared.open(&address, &self.name);
        match timeout(self.timeout, connecting).await {
            Ok(opened) => opened.map(Connection::new),
            Err(_) => Err(io::Error::new(
                ErrorKind::TimedOut,
                format!(
                    "no listener \"{}\" of the node at {address} accepted within {:?}",
                    self.name, self.timeout
                ),
            )),
        }
    }
}

impl Shared {
    /// Opens a stream over the session with that address, and makes the session if there is none.
    async fn open(&self, address: &str, name: &str) -> io::Result<Stream> {
        let session = lock(&self.sessions)
            .entry(address.to_owned())
            .or_default()
            .clone();
        loop {
            let mut place = session.lock().await;
            let known = place.take().filter(|peer| !peer.is_gone());
            let was_known = known.is_some();
            let peer = match known {
                Some(peer) => peer,
                None => {
                    let connected = self.node.connect_async(address).await;
                    connected.map_err(|error| io::Error::new(kind_of(&error), error))?
                }
            };
            *place = Some(peer.clone());
            drop(place);
            match Stream::connect_async(&peer, name).await {
                // The session had ended before this end noticed.
                Err(_) if was_known && peer.is_gone() => {}
                opened => return opened,
            }
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = io::Error;
    type Future = ConnectFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> ConnectFuture {
        Box::pin(self.clone().connect(uri))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("name", &self.name)
            .field("connect_timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Returns the address of a node as `host:port`.
fn address_of(uri: &Uri) -> io::Result<String> {
    let missing = || {
        let text = format!("the URI `{uri}` names no host; a node is found by http://host:port");
        io::Error::new(ErrorKind::InvalidInput, text)
    };
    let host = uri.host().ok_or_else(missing)?;
    let port = match (uri.port_u16(), uri.scheme_str()) {
        (Some(port), _) => port,
        (None, Some("https")) => 443,
        (None, _) => 80,
    };
    Ok(format!("{host}:{port}"))
}

/// Returns the kind of the socket's error within, if there is one.
fn kind_of(error: &ConnectError) -> ErrorKind {
    let mut within: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = within {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind();
        }
        within = error.source();
    }
    ErrorKind::Other
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_is_an_address() {
        let of = |uri: &'static str| address_of(&Uri::from_static(uri)).ok();
        assert_eq!(of("http://store:7000/a"), Some("store:7000".to_owned()));
        assert_eq!(of("https://store/"), Some("store:443".to_owned()));
        assert_eq!(of("http://[::1]/"), Some("[::1]:80".to_owned()));
        assert_eq!(of("/only/a/path"), None);
    }
}
