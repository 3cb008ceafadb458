//! The connection of an end that dialed, and its side of the handshake on it.
#![forbid(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use super::patience::{Cancelled, Patience};
use super::tcp::{self, Incoming};
use crate::handshake::{Handshake, Part};

/// A handshake and the connection that it runs on.
pub(super) struct Line<'a, P: Part> {
    pub(super) machine: Handshake<P>,
    pub(super) stream: TcpStream,
    outbox: Vec<u8>,
    patience: Patience<'a>,
}

impl<'a, P: Part> Line<'a, P> {
    pub(super) fn new(machine: Handshake<P>, stream: TcpStream, patience: Patience<'a>) -> Self {
        Line {
            machine,
            stream,
            outbox: Vec::new(),
            patience,
        }
    }

    /// Writes what the socket takes.
    pub(super) fn transmit(&mut self) {
        while let Some(bytes) = self.machine.poll_transmit() {
            self.outbox.extend(bytes);
        }
        tcp::write(&self.stream, &mut self.outbox);
    }

    /// Whether the socket has taken everything.
    pub(super) fn has_transmitted(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Waits for the socket, or until `beside` is readable.
    pub(super) fn wait(&self, beside: Option<BorrowedFd<'_>>) -> Result<(), Cancelled> {
        let mut wanted = PollFlags::IN;
        if !self.outbox.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let stream = (self.stream.as_fd(), wanted);
        match beside {
            Some(beside) => self.patience.wait(&[stream, (beside, PollFlags::IN)]),
            None => self.patience.wait(&[stream]),
        }
    }

    /// The same for the answer to the last word of this end, behind which the peer may have a
    /// session: who has cancelled the call must tell it that nobody takes that.
    pub(super) fn wait_out(&self) {
        self.patience
            .wait_out(&[(self.stream.as_fd(), PollFlags::IN)]);
    }

    /// Takes in what one read brings.
    pub(super) fn receive(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match tcp::read(&self.stream, &mut buffer) {
            Incoming::Bytes(bytes) => self.machine.handle_bytes(bytes),
            Incoming::Nothing => {}
            Incoming::Closed(detail) => self.machine.handle_closed(detail),
        }
    }
}

/// One read: more than the acceptor's half of any handshake.
const READ_BYTES: usize = 4096;
