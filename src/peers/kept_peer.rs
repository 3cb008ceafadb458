//! The sessions with one kept peer.

use std::{
    borrow::BorrowMut,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use ibex_ring::parking::{Patience, Ticket};

use super::board::{Board, BoardPoll};
use crate::Peer;

/// The sessions with the peer at a kept address, one after the other.
pub(crate) struct KeptPeer {
    board: Arc<Board>,
    address: String,
    /// The session that was handed out last.
    last: Option<Peer>,
    /// The last session is over, whether the board shows it or not.
    is_over: bool,
    /// A task's place among the tasks that wait at the board.
    held: Option<Ticket>,
}

impl KeptPeer {
    pub(crate) fn new(board: Arc<Board>, address: String) -> Self {
        Self {
            board,
            address,
            last: None,
            is_over: false,
            held: None,
        }
    }

    /// Returns the session to go on in, if there is one now. `Some(None)` says that the keeping has
    /// ended.
    pub(crate) fn try_next(&mut self) -> BoardPoll<Peer> {
        self.next_within(Patience::None)
    }

    /// Waits for the session to go on in, until the deadline if there is one.
    pub(crate) fn next_until(&mut self, deadline: Option<Instant>) -> BoardPoll<Peer> {
        self.next_within(Patience::Until(deadline))
    }

    /// Waits for the session to go on in, for a task.
    pub(crate) fn next_async(&mut self) -> KeptPeerAsync<&mut Self> {
        KeptPeerAsync(self)
    }

    /// Turns this into a wait for the next session, for a task.
    pub(super) fn into_next(self) -> KeptPeerAsync<Self> {
        KeptPeerAsync(self)
    }

    /// Notes that the session that was handed out last is over.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the text of the last attempt that failed, if there was none since.
    pub(crate) fn failure(&self) -> Option<String> {
        self.board.failure(&self.address)
    }

    fn next_within(&mut self, patience: Patience) -> BoardPoll<Peer> {
        let ended = self.last.as_ref().filter(|_| self.is_over);
        let next = self.board.next_peer(&self.address, ended, patience)?;
        Some(self.hand_out(next))
    }

    fn hand_out(&mut self, next: Option<Peer>) -> Option<Peer> {
        if next.is_some() {
            self.last.clone_from(&next);
            self.is_over = false;
        }
        next
    }
}

/// A wait for a kept peer's next session. `None` says that the keeping has ended. Dropping the
/// future changes nothing.
pub(crate) struct KeptPeerAsync<K: BorrowMut<KeptPeer>>(K);

impl<K: BorrowMut<KeptPeer> + Unpin> Future for KeptPeerAsync<K> {
    type Output = Option<Peer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Peer>> {
        let kept = self.get_mut().0.borrow_mut();
        let ended = kept.last.as_ref().filter(|_| kept.is_over);
        let (address, held) = (&kept.address, &mut kept.held);
        let next = kept.board.poll_peer(address, ended, held, context.waker());
        Poll::Ready(kept.hand_out(ready!(next)))
    }
}

impl<K: BorrowMut<KeptPeer>> Drop for KeptPeerAsync<K> {
    fn drop(&mut self) {
        let kept = self.0.borrow_mut();
        kept.board.leave(&mut kept.held);
    }
}
