//! The sessions with one kept peer.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::{Poll, Waker, ready},
    time::Instant,
};

use ibex_core::{
    Peer,
    extend::{
        Runtime,
        parking::{Patience, Ticket},
    },
};

use super::board::{Board, BoardPoll};

/// The sessions with the peer at a kept address, one after the other.
pub struct KeptPeer {
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

    /// Waits for the session to go on in, until the deadline if there is one.
    pub fn next_until(&mut self, deadline: Option<Instant>) -> BoardPoll<Peer> {
        let ended = self.last.as_ref().filter(|_| self.is_over);
        let patience = Patience::Until(deadline);
        let next = self
            .board
            .wait(patience, || self.board.check_for(&self.address, ended))?;
        Some(self.hand_out(next))
    }

    /// Polls for the session to go on in. `None` says that the keeping has ended.
    pub fn poll_next(&mut self, waker: &Waker) -> Poll<Option<Peer>> {
        let ended = self.last.as_ref().filter(|_| self.is_over);
        let check = || self.board.check_for(&self.address, ended);
        let next = ready!(self.board.poll(&mut self.held, waker, check));
        Poll::Ready(self.hand_out(next))
    }

    /// Takes back the waker that a poll left.
    pub fn leave(&mut self) {
        self.board.leave(&mut self.held);
    }

    /// Waits for the next session in a task. `None` says that the keeping has ended. Dropping the
    /// future changes nothing.
    pub(super) fn into_next(mut self) -> impl Future<Output = Option<Peer>> {
        poll_fn(move |context| self.poll_next(context.waker()))
    }

    /// Notes that the session that was handed out last is over.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Returns the session that was handed out last, unless it is known to be over.
    pub fn present(&self) -> Option<&Peer> {
        self.last.as_ref().filter(|_| !self.is_over)
    }

    /// Returns the runtime of the node that keeps connected.
    pub fn runtime(&self) -> &Runtime {
        self.board.runtime()
    }

    /// Returns the address, as the discovery writes it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the text of the last attempt that failed, if there was none since.
    pub fn failure(&self) -> Option<String> {
        self.board.failure(&self.address)
    }

    fn hand_out(&mut self, next: Option<Peer>) -> Option<Peer> {
        if next.is_some() {
            self.last.clone_from(&next);
            self.is_over = false;
        }
        next
    }
}

impl Drop for KeptPeer {
    fn drop(&mut self) {
        self.leave();
    }
}
