//! Events of the peers that a node keeps connected.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_ring::parking::{Patience, Ticket};

use super::{board::Board, futures::PeersEventAsync};
use crate::{ConnectError, EndCause, Peer, PeerId, discovery::DiscoveryError};

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
    /// The session with an address is over. Connecting anew has begun, if the discovery still
    /// answers the address.
    #[non_exhaustive]
    Lost {
        /// The address that was dialed.
        address: String,
        /// The peer that was there.
        peer: PeerId,
        /// The reason of the end.
        cause: EndCause,
    },
    /// The peer at an address [drains](crate::Node::drain), and is kept no more. The address is
    /// dialed again, if the discovery still answers it, and leads to the process that comes in the
    /// peer's place. The session goes on until the peer's node is closed, and its end is not told
    /// here.
    #[non_exhaustive]
    Draining {
        /// The address that was dialed.
        address: String,
        /// The peer that drains.
        peer: Peer,
    },
    /// An address was not reached: told of the first failure in a row, until it is connected.
    #[non_exhaustive]
    NotReached {
        /// The address.
        address: String,
        /// The failure.
        error: ConnectError,
        /// The time of the next attempt.
        next_attempt: Instant,
    },
    /// The discovery has failed, and its last answer stays in force: told of the first failure in
    /// a row, until it answers.
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
        let left = |at: &Instant| at.saturating_duration_since(Instant::now());
        match self {
            PeersEvent::Connected { address, peer } => write!(f, "{address}: connected to {peer}"),
            PeersEvent::Lost {
                address,
                peer,
                cause,
            } => write!(f, "{address}: the session with {peer} is over: {cause}"),
            PeersEvent::Draining { address, peer } => {
                write!(f, "{address}: {peer} drains, and is left for its successor")
            }
            PeersEvent::NotReached {
                address,
                error,
                next_attempt,
            } => write!(
                f,
                "{address} was not reached, and is tried again in {:.1?}: {error}",
                left(next_attempt)
            ),
            PeersEvent::DiscoveryFailed {
                error,
                next_attempt,
            } => write!(
                f,
                "the discovery of peers failed, and is asked again in {:.1?}; its last answer \
                 stays in force: {error}",
                left(next_attempt)
            ),
        }
    }
}

/// The events of kept peers: [`Peers::events`](super::Peers::events).
///
/// As an iterator it waits for the next one, and ends when the keeping has ended and all were
/// taken: the [`Peers`](super::Peers) were dropped, or the node was closed. It may be moved to
/// another thread, and does not keep anything going.
pub struct PeersEvents {
    board: Arc<Board>,
    /// The waker of the last poll.
    held: Option<Ticket>,
}

impl PeersEvents {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Self { board, held: None }
    }

    /// The next event, if there is one. Under [`Driver::Caller`](crate::Driver::Caller) it
    /// runs a turn first.
    pub fn try_next(&mut self) -> Option<PeersEvent> {
        self.board.next_event(Patience::None)
    }

    /// The next event; `None` if none came within `timeout`, or none will.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<PeersEvent> {
        self.board.next_event(Patience::at_most(timeout))
    }

    /// The next event, for a task; `None` if none will come. Dropping the future loses none.
    pub fn next_async(&mut self) -> impl Future<Output = Option<PeersEvent>> {
        PeersEventAsync(self)
    }

    /// The next event, for a task that polls by itself; `None` if none will come. The handle keeps
    /// the waker of the last poll until an event comes, or it is dropped.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<PeersEvent>> {
        self.board.poll_event(&mut self.held, context.waker())
    }

    pub(super) fn leave(&mut self) {
        self.board.leave(&mut self.held);
    }

    /// Events that were dropped because nobody took them. The latest 1024 are kept.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.board.dropped()
    }
}

impl Iterator for PeersEvents {
    type Item = PeersEvent;

    fn next(&mut self) -> Option<PeersEvent> {
        self.board.next_event(Patience::FOREVER)
    }
}

/// Another reader of the same events.
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

impl fmt::Debug for PeersEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersEvents")
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}
