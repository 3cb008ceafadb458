//! An address of the configuration, and the session with who is there.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex::{Node, Peer, PeerAt, asynchronous::ConnectAsync};

/// Connects to an address, and again when that session is over.
pub(crate) struct Dialer<'n> {
    node: &'n Node,
    address: String,
    /// Attempts in a row that came to nothing.
    failures: u32,
    state: State<'n>,
}

enum State<'n> {
    Connecting(ConnectAsync<'n>),
    Connected(PeerAt),
    /// The last attempt came to nothing; the next one is made then.
    Waiting(Instant),
    /// The address is this node's own.
    Own,
}

impl<'n> Dialer<'n> {
    pub(crate) fn new(node: &'n Node, address: String) -> Self {
        Self {
            node,
            failures: 0,
            state: State::Connecting(node.connect_async(&address)),
            address,
        }
    }

    /// Goes on, and returns a session when there is a new one.
    pub(crate) fn poll(&mut self, now: Instant, context: &mut Context<'_>) -> Option<Peer> {
        if matches!(self.state, State::Waiting(until) if until <= now) {
            self.dial();
        }
        let State::Connecting(connecting) = &mut self.state else {
            return None;
        };
        match Pin::new(connecting).poll(context) {
            Poll::Pending => None,
            Poll::Ready(Ok(peer)) => self.connected(peer),
            Poll::Ready(Err(error)) => {
                if self.failures == 0 {
                    let address = &self.address;
                    tracing::warn!(address, %error, "a peer was not reached, and is tried again");
                }
                self.state = State::Waiting(now + pause(self.failures));
                self.failures = self.failures.saturating_add(1);
                None
            }
        }
    }

    fn connected(&mut self, peer: Peer) -> Option<Peer> {
        self.failures = 0;
        if peer.id() == self.node.id() {
            let address = &self.address;
            tracing::warn!(address, "this is the carrier's own address; it is left out");
            self.state = State::Own;
            return None;
        }
        self.state = State::Connected(peer.at());
        Some(peer)
    }

    /// Dials again, if the session that is over was this one's. It is to be polled then.
    pub(crate) fn lost(&mut self, session: PeerAt) {
        if matches!(self.state, State::Connected(at) if at == session) {
            self.dial();
        }
    }

    fn dial(&mut self) {
        self.state = State::Connecting(self.node.connect_async(&self.address));
    }

    /// The time at which it is to be polled, if it waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(until) => Some(until),
            _ => None,
        }
    }
}

/// The pause behind an attempt, which itself takes up to the node's `connect_timeout`.
fn pause(failures: u32) -> Duration {
    (FIRST_PAUSE * (1 << failures.min(4))).min(LONGEST_PAUSE)
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
