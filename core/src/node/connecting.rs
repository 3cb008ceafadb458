//! The calls that connect a node to a peer.

use std::{future::Future, mem, task::Poll};

use ibex_base::fork;
use ibex_bootstrap::{DialRequest, Local};
use ibex_ring::parking;
use ibex_transport::{engine::Admission, session::EngineId};

use super::Node;
use crate::{
    ConnectError, ConnectErrorKind, Peer, ToAddress,
    meeting::{
        connector::Connector,
        dialing::{Connecting, closed, closed_by},
        listener::admit,
    },
};

/// A task that connects. See [`Node::connect_async`].
enum State {
    New,
    Connecting(Connecting),
    Done,
}

impl Node {
    /// Connects to the node that listens on `address`: `host:port`, `vsock:CID:PORT`, an
    /// [`Address`](crate::Address), or `(host, port)`; see [`ToAddress`].
    ///
    /// The addresses of a name are tried beside each other, a quarter of a second apart, and the
    /// first that gives a session wins. An IPv6 address may name its interface:
    /// `[fe80::1%eth0]:7000`.
    ///
    /// Waits for up to `connect_timeout` (default 10 s) for a node that starts later. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it runs turns meanwhile: sessions go on and peers are let in, so a node
    /// may connect to itself, and two nodes to each other.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no node answered in time; the program that answered is not ibex, or has
    /// another version or kind of security; or no fabric suits both nodes. A failed attempt leaves
    /// nothing behind.
    pub fn connect(&self, address: impl ToAddress) -> Result<Peer, ConnectError> {
        self.connect_to(&address.to_text(), None)
    }

    /// Connects like [`connect`](Self::connect), and places the session on one of the engines that
    /// [`io_threads`](crate::NodeBuilder::io_threads) gave the node, numbered from 0. It stays there for as
    /// long as it lasts, and over RDMA uses the queues of that engine. Without this call the session
    /// is on the engine with the fewest sessions.
    ///
    /// ```no_run
    /// use ibex::Node;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::builder().io_threads(2).build()?;
    /// // Two sessions with one peer, each on an engine of its own.
    /// let bulk = node.connect_on(0, "db:7000")?;
    /// let requests = node.connect_on(1, "db:7000")?;
    /// assert_ne!(bulk.engine(), requests.engine());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect), and
    /// [`NoSuchEngine`](crate::ConnectErrorKind::NoSuchEngine).
    pub fn connect_on(&self, engine: usize, address: impl ToAddress) -> Result<Peer, ConnectError> {
        self.connect_to(&address.to_text(), Some(engine))
    }

    /// Connects in a task to the node that listens on `address`. Connecting begins with the first
    /// poll.
    ///
    /// Any number of tasks may connect at a time; a peer that does not answer holds up no other.
    /// Dropping the future ends the attempt at once: the peer may then have seen a session for a
    /// moment. Under [`Driver::Caller`](crate::Driver::Caller) each poll runs a turn, and the attempt
    /// goes on in the node's turns.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready.
    pub fn connect_async(
        &self,
        address: impl ToAddress,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        self.connect_to_async(address.to_text(), None)
    }

    /// Connects like [`connect_async`](Self::connect_async), and places the session on an engine as
    /// [`connect_on`](Self::connect_on) does.
    ///
    /// # Errors
    ///
    /// The errors of [`connect_on`](Self::connect_on).
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready.
    pub fn connect_on_async(
        &self,
        engine: usize,
        address: impl ToAddress,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        self.connect_to_async(address.to_text(), Some(engine))
    }

    /// Returns the means to make single attempts to connect.
    pub(crate) fn connector(&self) -> Connector {
        Connector {
            runtime: self.runtime().clone(),
            local: self.parts.local.clone(),
            desk: self.parts.resuming.desk.clone(),
            channel: self.channel_defaults(),
            linger: self.parts.settings.time.linger,
        }
    }

    fn connect_to(&self, address: &str, engine: Option<usize>) -> Result<Peer, ConnectError> {
        self.check_fork()?;
        let connecting = self.begin_to_connect(address, engine)?;
        let outcome = connecting.wait(self.runtime());
        let outcome = outcome.unwrap_or_else(|| Err(closed(self.runtime(), address)));
        self.connected(address, engine, outcome)
    }

    fn connect_to_async(
        &self,
        address: String,
        engine: Option<usize>,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        parking::future(
            State::New,
            move |state, context| {
                self.check_fork()?;
                let mut connecting = match mem::replace(state, State::Done) {
                    State::New => self.begin_to_connect(&address, engine)?,
                    State::Connecting(connecting) => connecting,
                    State::Done => panic!("polled after it was ready"),
                };
                match connecting.poll(context.waker(), || self.runtime().turn_for_caller()) {
                    Poll::Ready(outcome) => {
                        drop(connecting);
                        Poll::Ready(self.connected(&address, engine, outcome))
                    }
                    Poll::Pending => {
                        *state = State::Connecting(connecting);
                        Poll::Pending
                    }
                }
            },
            |state| {
                if fork::is_child() {
                    // A forked child does not drop what its parent dialed.
                    mem::forget(mem::replace(state, State::Done));
                }
            },
        )
    }

    fn begin_to_connect(
        &self,
        address: &str,
        engine: Option<usize>,
    ) -> Result<Connecting, ConnectError> {
        let request = DialRequest {
            address: address.to_owned(),
            local: self.local_for(address, engine)?,
            timeout: self.parts.settings.time.connect_timeout,
            tries_again: true,
        };
        Connecting::begin(self.runtime(), &self.parts.resuming.desk, request)
    }

    /// Returns what this node brings to the handshake of a session, which may be placed on an
    /// engine.
    fn local_for(&self, address: &str, engine: Option<usize>) -> Result<Local, ConnectError> {
        let local = self.parts.local.clone();
        let Some(engine) = engine else {
            return Ok(local);
        };
        let engines = self.parts.settings.threads.io_threads;
        if engine >= engines {
            return Err(ConnectError::no_such_engine(address, engine, engines));
        }
        #[cfg(feature = "verbs")]
        let local = Local {
            verbs_devices: Some(std::sync::Arc::new(self.parts.devices.of_engine(engine))),
            ..local
        };
        Ok(local)
    }

    fn connected(
        &self,
        address: &str,
        engine: Option<usize>,
        outcome: Result<Box<Admission>, ConnectError>,
    ) -> Result<Peer, ConnectError> {
        match outcome {
            Ok(mut admission) => {
                admission.engine = engine.map(EngineId::new);
                admit(self.runtime(), self.channel_defaults(), address, *admission)
            }
            Err(error) if error.kind() == ConnectErrorKind::Closed => {
                Err(closed_by(self.runtime(), address, error))
            }
            Err(error) => Err(error),
        }
    }
}
