//! Peers that a node stays connected to.
//!
//! A *keeper* is a thread that sleeps unless there are events. The keeper knows the addresses and the
//! state of each (`keeper.rs`). Everything else only leaves events for it (`inbox.rs`): the thread that asks
//! the discovery, an attempt that has an outcome, a session that ends, the handle. The keeper puts its
//! decisions on a *board* (`board.rs`), where the program's calls look and wait. The keeper also calls
//! the wakers of tasks that wait for a time (`alarms.rs`). `endpoints.rs` follows the board for those
//! who open something in each session, and chooses a session for each use.
#![forbid(unsafe_code)]

mod addresses;
mod alarms;
mod board;
mod endpoint_wait;
mod endpoints;
mod event;
mod inbox;
mod keeper;
mod kept_peer;
mod schedule;
mod tried;

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_core::extend::{fork, threads};

use self::{
    board::Board,
    inbox::{Changes, Inbox},
    keeper::Keeper,
};

pub use self::event::{PeersEvent, PeersEvents};

/// Peers that a node stays connected to, and the sources of their addresses.
///
/// [`keep_connected`](crate::KeepConnected::keep_connected) takes a [`Discovery`], which
/// returns addresses. The call returns [`Peers`], which dials the addresses, and dials again when a
/// peer is lost.
pub mod discovery {
    pub use crate::{
        Peers, PeersEvent, PeersEvents,
        addresses::{Discovery, Dns, Found},
    };
}

/// What a crate needs that opens something with each of several kept peers, as calls and logs do.
pub mod extend {
    pub use super::{
        endpoints::{ChosenEndpoint, Endpoints, NoEndpoint, PeerEndpoint},
        kept_peer::KeptPeer,
        tried::Tried,
    };
}

use self::{endpoints::Endpoints, kept_peer::KeptPeer};
use crate::addresses::Discovery;
use ibex_core::{
    ChannelBuilder, ConnectError, Node, Peer, ToAddress,
    extend::{Connector, DefaultCodec, channel, check_fork, connector, errors, runtime},
};

/// The peers that a node keeps connected: [`Node::keep_connected`](crate::KeepConnected::keep_connected).
///
/// Dropping it stops the keeping: no address is dialed any more, and its events end. Live sessions
/// go on until they or one of the two nodes are closed. Closing the node stops the keeping too.
pub struct Peers {
    board: Arc<Board>,
    inbox: Arc<Inbox>,
    /// The settings that channels with these peers begin with.
    connector: Connector,
}

/// Keeps a node connected to its peers.
pub trait KeepConnected {
    /// Stays connected to all nodes whose addresses `discovery` returns. A list of addresses,
    /// such as `&str`, `String` or `Address`, is taken as well.
    ///
    /// All addresses are dialed at once. An address is dialed again when its session is over or it
    /// was not reached, after pauses that grow to 5 s. Chance shortens each pause by up to a half,
    /// so that nodes that lost the same peer do not come back together. An attempt takes up to 3 s,
    /// and holds up no other one.
    ///
    /// Of very many addresses, up to 4,000 a second are dialed for the first time, in no order, and
    /// up to 400 again. Those that failed less often in a row come first, so an address that is new
    /// or has lost its session does not wait behind dead ones; thousands of dead ones are dialed
    /// less often than every 5 s. The log gets a few warnings of addresses that are not reached, and
    /// then their number.
    ///
    /// - The node's own address is left out, and is looked at again each minute. An address is left
    ///   out, too, if the node there is proven to be one that is already kept by another address,
    ///   which then stands for both in [`wait_for`](Peers::wait_for). A node is proven to be the
    ///   same by its [certificate](ibex_core::Security::certificates), or by the kernel, which names
    ///   the process over shared memory. Its [`id`](Peer::id) is its own word and proves nothing,
    ///   so without a proof each address has a session of its own, also if both lead to one node.
    ///   A node whose address is left out sees a session for a moment, each time this is found out.
    /// - An address that the discovery no longer returns is let go: its session is
    ///   [closed](Peer::close) once everything that was sent is delivered, after
    ///   [`linger`](ibex_core::NodeBuilder::linger) at the latest, and is not made again. From the
    ///   beginning of the close on, nobody finds it here. Calls under way there are
    ///   lost, so drain a node before it leaves the list. The
    ///   program may close the session with a listed address too; that address is dialed again after
    ///   the session's end.
    /// - A peer that [drains](ibex_core::Node::drain) is left at once, and its address is dialed again. Where
    ///   processes share a listening socket, that leads to the next process. The session with the
    ///   old process goes on until that closes, for calls and channels that were begun there.
    /// - Only sessions that the keeping made count. Two nodes that keep each other have two
    ///   sessions.
    ///
    /// The call returns at once. One thread sleeps until there is something to do, and another asks
    /// the discovery as long as it has more to say. The node's engine dials. Under
    /// [`Driver::Caller`](ibex_core::Driver::Caller) the program has to turn it, by the calls that wait
    /// here or by others; without turns no peer is reached, and the keeper learns of no session's
    /// end.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use ibex::{Node, discovery::PeersEvent};
    /// use ibex::prelude::*;
    ///
    /// let replica = Node::listen("127.0.0.1:0")?;
    /// let address = replica.local_addr().unwrap();
    ///
    /// let node = Node::client()?;
    /// let peers = node.keep_connected([address])?;
    /// for event in peers.events() {
    ///     println!("{event}");
    ///     if let PeersEvent::Connected { peer, .. } = event {
    ///         assert_eq!(peer.id(), replica.id());
    ///         break;
    ///     }
    /// }
    /// assert!(peers.wait_for_timeout(address, Duration::from_secs(60)).is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Resources`](ibex_core::ConnectErrorKind::Resources): the process cannot have two more threads.
    /// [`UsedAfterFork`](ibex_core::ConnectErrorKind::UsedAfterFork): this process is a fork.
    fn keep_connected(
        &self,
        discovery: impl Into<Box<dyn Discovery>>,
    ) -> Result<Peers, ConnectError>;
}

impl KeepConnected for Node {
    fn keep_connected(
        &self,
        discovery: impl Into<Box<dyn Discovery>>,
    ) -> Result<Peers, ConnectError> {
        check_fork(self)?;
        // From here on, an error drops `peers`, which stops what has begun.
        let peers = Peers {
            board: Arc::new(Board::new(runtime(self).clone())),
            inbox: Arc::default(),
            connector: connector(self),
        };
        let (board, inbox) = (peers.board.clone(), peers.inbox.clone());
        let keeper = Keeper::new(self.id(), peers.connector.clone(), board, inbox.clone());
        threads::spawn("ibex-peers", move || keeper.run()).map_err(errors::no_thread)?;
        let discovery = discovery.into();
        let ask = move || keeper::ask(discovery, &inbox);
        threads::spawn("ibex-discover", ask).map_err(errors::no_thread)?;
        Ok(peers)
    }
}

impl Peers {
    /// Returns the sessions with the peer at `address`, one after the other.
    #[must_use]
    pub fn kept_peer(&self, address: impl ToAddress) -> KeptPeer {
        KeptPeer::new(self.board.clone(), address.to_text())
    }

    /// Returns the sessions with all connected peers, in each of which `open` opens a handle.
    pub fn endpoints<T>(
        &self,
        open: Box<dyn Fn(&Peer) -> T + Send + Sync>,
        is_open: fn(&T) -> Option<bool>,
    ) -> Endpoints<T> {
        Endpoints::new(self.board.clone(), self.inbox.clone(), open, is_open)
    }

    /// Begins the settings of what is opened with these peers, for example a caller of their
    /// services.
    pub fn channel(&self, name: &str) -> ChannelBuilder<DefaultCodec, &Self> {
        channel(self, self.connector.channel(name))
    }

    /// Returns the peers that are connected now, each session once, in the order of their addresses.
    #[must_use]
    pub fn connected(&self) -> Vec<Peer> {
        self.board.connected()
    }

    /// Returns the events of these peers, from the beginning on and in order. Each event is
    /// returned once, so of several readers each gets a part. A program need not read events: if it
    /// does not, the oldest are dropped.
    #[must_use]
    pub fn events(&self) -> PeersEvents {
        PeersEvents::new(self.board.clone())
    }

    /// Waits until the peer at `address` is connected, without limit, and returns it. The address
    /// is written as the discovery writes it. `None` when the keeping has ended with the node, and
    /// in a fork.
    ///
    /// An address that the discovery has not returned yet may come with a later answer, so it is
    /// waited for too. So is the successor of a peer that [drains](ibex_core::Node::drain).
    #[must_use]
    pub fn wait_for(&self, address: impl ToAddress) -> Option<Peer> {
        self.kept_peer(address).next_until(None).flatten()
    }

    /// Waits for the peer at `address` for up to `timeout`; `None` also when the time is up.
    #[must_use]
    pub fn wait_for_timeout(&self, address: impl ToAddress, timeout: Duration) -> Option<Peer> {
        let deadline = Instant::now().checked_add(timeout);
        self.kept_peer(address).next_until(deadline).flatten()
    }

    /// Waits in a task for the peer at `address`, as [`wait_for`](Self::wait_for) does. Dropping
    /// the future changes nothing.
    pub fn wait_for_async(&self, address: impl ToAddress) -> impl Future<Output = Option<Peer>> {
        self.kept_peer(address).into_next()
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if fork::is_child() {
            // A forked child does not drop what these references hold.
            mem::forget((self.board.clone(), self.inbox.clone()));
            return;
        }
        self.inbox.stop();
    }
}

ibex_core::extend::debug_fields!([] Peers: |peers| connected = peers.connected());
