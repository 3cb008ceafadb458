//! Events of the peers that a node keeps connected.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_core::{
    ConnectError, EndCause, Peer, PeerId, PeerNames,
    extend::parking::{self, Patience, Ticket},
};

use super::board::Board;
use crate::addresses::DiscoveryError;

/// Something that happened to the peers of [`Peers`](super::Peers).
#[derive(Debug)]
#[non_exhaustive]
pub enum PeersEvent {
    /// A session is up.
    #[non_exhaustive]
    Connected {
        /// The address that was dialed.
        address: String,
        /// The peer.
        peer: Peer,
    },
    /// The session with an address is over. The address is dialed again, if the discovery still
    /// returns it. If the peer has another listed address, its [`Connected`](Self::Connected) there
    /// may come first, so keep peers by address.
    #[non_exhaustive]
    Lost {
        /// The address that was dialed.
        address: String,
        /// The peer that was there.
        peer: PeerId,
        /// The names of that peer.
        names: PeerNames,
        /// The reason of the end.
        cause: EndCause,
    },
    /// The peer at an address [drains](ibex_core::Node::drain), and is no longer kept. The address is
    /// dialed again, if the discovery still returns it, and leads to the process that takes the
    /// peer's place. The session goes on until the peer's node is closed, and its end is not
    /// reported here.
    #[non_exhaustive]
    Draining {
        /// The address that was dialed.
        address: String,
        /// The peer that drains.
        peer: Peer,
    },
    /// An address was not reached. This reports the first failure in a row, until the address is
    /// connected.
    #[non_exhaustive]
    NotReached {
        /// The address.
        address: String,
        /// The failure.
        error: ConnectError,
        /// The time of the next attempt.
        next_attempt: Instant,
    },
    /// The discovery has failed, and its last answer stays in force. This reports the first failure
    /// in a row, until it answers.
    #[non_exhaustive]
    DiscoveryFailed {
        /// The error that it returned.
        error: DiscoveryError,
        /// The time at which it is asked again.
        next_attempt: Instant,
    },
}

impl fmt::Display for PeersEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeersEvent::Connected { address, peer } => write!(f, "{address}: connected to {peer}"),
            PeersEvent::Lost {
                address,
                peer,
                names,
                cause,
            } => write!(
                f,
                "{address}: the session with {peer}{names} is over: {cause}"
            ),
            PeersEvent::Draining { address, peer } => {
                write!(f, "{address}: {peer} drains, and is left for its successor")
            }
            PeersEvent::NotReached {
                address,
                error,
                next_attempt,
            } => write!(
                f,
                "{address} was not reached, and is tried again {}: {error}",
                time_left(*next_attempt)
            ),
            PeersEvent::DiscoveryFailed {
                error,
                next_attempt,
            } => write!(
                f,
                "the discovery of peers failed, and is asked again {}; its last answer stays in \
                 force: {error}",
                time_left(*next_attempt)
            ),
        }
    }
}

/// The events of kept peers: [`Peers::events`](super::Peers::events).
///
/// The iterator waits for the next event. It ends when all events were taken and the keeping has
/// ended, because the [`Peers`](super::Peers) were dropped or the node was closed. The handle may
/// be moved to another thread, and keeps nothing going.
pub struct PeersEvents {
    board: Arc<Board>,
    /// The waker of the last poll.
    held: Option<Ticket>,
}

impl PeersEvents {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Self { board, held: None }
    }

    /// Returns the next event, if there is one. Under [`Driver::Caller`](ibex_core::Driver::Caller) it
    /// runs a turn first.
    pub fn try_next(&mut self) -> Option<PeersEvent> {
        self.next_with(Patience::None)
    }

    /// The next event; `None` if none came within `timeout`, or none will.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<PeersEvent> {
        self.next_with(Patience::at_most(timeout))
    }

    /// Waits for the next event in a task; `None` if none will come. Dropping the future loses no
    /// event.
    pub fn next_async(&mut self) -> impl Future<Output = Option<PeersEvent>> {
        parking::future(
            self,
            |events, context| events.poll_next(context),
            |events| events.leave(),
        )
    }

    /// Polls for the next event; `None` if none will come. The handle keeps the waker of the last
    /// poll until an event comes, or it is dropped.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<PeersEvent>> {
        let check = || self.board.check_event();
        self.board.poll(&mut self.held, context.waker(), check)
    }

    fn next_with(&self, patience: Patience) -> Option<PeersEvent> {
        let next = self.board.wait(patience, || self.board.check_event());
        next.flatten()
    }

    pub(super) fn leave(&mut self) {
        self.board.leave(&mut self.held);
    }

    /// Returns the number of events that were dropped because they were not taken. The latest 1024
    /// are kept.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.board.dropped()
    }
}

impl Iterator for PeersEvents {
    type Item = PeersEvent;

    fn next(&mut self) -> Option<PeersEvent> {
        self.next_with(Patience::FOREVER)
    }
}

/// Makes another reader of the same events.
impl Clone for PeersEvents {
    fn clone(&self) -> Self {
        Self::new(self.board.clone())
    }
}

impl Drop for PeersEvents {
    fn drop(&mut self) {
        self.leave();
    }
}

ibex_core::extend::debug_fields!([] PeersEvents: |events| dropped = events.dropped());

/// Returns how long it is until then, in words.
fn time_left(at: Instant) -> String {
    match at.saturating_duration_since(Instant::now()) {
        Duration::ZERO => "now".to_owned(),
        left => format!("in {left:.1?}"),
    }
}
