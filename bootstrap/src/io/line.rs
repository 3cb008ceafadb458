//! The connection of an end that dialed, and its side of the handshake on it.
#![forbid(unsafe_code)]

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

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

    /// Writes as much as the socket takes.
    pub(super) fn transmit(&mut self) {
        while let Some(bytes) = self.machine.poll_transmit() {
            self.outbox.extend(bytes);
        }
        tcp::write(&self.stream, &mut self.outbox);
    }

    /// Returns whether the socket has taken everything.
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

    /// Waits for the answer to this end's last message, even if the call is cancelled. The peer may
    /// have a session after that message, and must learn that it will not be used.
    pub(super) fn wait_out(&self) {
        self.patience
            .wait_out(&[(self.stream.as_fd(), PollFlags::IN)]);
    }

    /// Tells the peer of a failed handshake why, and reads on if TLS has sent the reason. Closing
    /// the connection with bytes unread would discard the reason at the peer.
    pub(super) fn part(&mut self) {
        self.transmit();
        if !self.machine.is_sealed() || !self.has_transmitted() {
            return;
        }
        // A connection that is broken already needs no shutdown.
        let _ = self.stream.shutdown(Shutdown::Write);
        let deadline = Instant::now() + FAREWELL;
        self.patience.deadline = self.patience.deadline.min(deadline);
        let mut buffer = [0; READ_BYTES];
        while Instant::now() < self.patience.deadline && self.wait(None).is_ok() {
            if let Incoming::Closed(_) = tcp::read(&self.stream, &mut buffer) {
                return;
            }
        }
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

/// The longest time for which a refused peer's bytes are read. The peer closes as soon as it has
/// read the reason.
const FAREWELL: Duration = Duration::from_secs(1);

/// Length of one read, which is more than the acceptor's half of any handshake.
const READ_BYTES: usize = 4096;
