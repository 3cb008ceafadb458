//! Kept peers and their events, for tasks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use ibex_ring::parking::Ticket;

use super::{PeersEvent, PeersEvents, board::Board};
use crate::Peer;

/// A wait for the peer at an address; see [`Peers::wait_for_async`](super::Peers::wait_for_async).
pub(crate) struct PeerAtAsync<'a> {
    board: &'a Board,
    address: String,
    held: Option<Ticket>,
}

impl<'a> PeerAtAsync<'a> {
    pub(super) fn new(board: &'a Board, address: String) -> Self {
        Self {
            board,
            address,
            held: None,
        }
    }
}

impl Future for PeerAtAsync<'_> {
    type Output = Option<Peer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Peer>> {
        let this = self.get_mut();
        this.board
            .poll_peer(&this.address, None, &mut this.held, context.waker())
    }
}

impl Drop for PeerAtAsync<'_> {
    fn drop(&mut self) {
        self.board.leave(&mut self.held);
    }
}

/// The next event of kept peers. See [`PeersEvents::next_async`].
pub(crate) struct PeersEventAsync<'a>(pub(super) &'a mut PeersEvents);

impl Future for PeersEventAsync<'_> {
    type Output = Option<PeersEvent>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PeersEvent>> {
        self.get_mut().0.poll_next(context)
    }
}

impl Drop for PeersEventAsync<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
