//! One end's half of a handshake and the connection that it runs on, without waiting. The acceptor
//! and the dialer have it alike.
#![forbid(unsafe_code)]

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::epoll_set::EpollEntry;
use super::tcp::{self, ReadOutcome};
use crate::handshake::{Handshake, Part};

/// A handshake and its connection, which is in an epoll set.
pub(super) struct HandshakeConnection<P: Part> {
    pub(super) machine: Handshake<P>,
    pub(super) stream: TcpStream,
    outbox: Vec<u8>,
    /// True once a byte of the peer has come.
    is_heard: bool,
    /// True if the set reports when `stream` takes more.
    watching_writes: bool,
    /// Set once the handshake has failed and the peer is to hear why.
    farewell: Option<Farewell>,
}

/// The end of a connection whose peer may still be sending. Closing it with bytes unread would have
/// the kernel send a reset, which takes the last words from the peer ([RFC 1122, section
/// 4.2.2.13](https://www.rfc-editor.org/rfc/rfc1122#section-4.2.2.13)).
struct Farewell {
    until: Instant,
    /// The number of bytes that may still be read.
    left: usize,
}

impl<P: Part> HandshakeConnection<P> {
    /// Takes a connection that the set watches for reading.
    pub(super) fn new(machine: Handshake<P>, stream: TcpStream) -> HandshakeConnection<P> {
        HandshakeConnection {
            machine,
            stream,
            outbox: Vec::new(),
            is_heard: false,
            watching_writes: false,
            farewell: None,
        }
    }

    /// Hands the machine what has arrived.
    pub(super) fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match tcp::read(&self.stream, &mut buffer) {
                ReadOutcome::Bytes(bytes) => {
                    self.is_heard = true;
                    self.machine.handle_bytes(bytes);
                    if bytes.len() < READ_BYTES {
                        break;
                    }
                }
                ReadOutcome::Nothing => break,
                ReadOutcome::Closed(detail) => {
                    self.machine.handle_closed(detail);
                    break;
                }
            }
        }
    }

    /// Writes what the machine has to say, as much as the socket takes.
    pub(super) fn write(&mut self, watch: EpollEntry<'_>) {
        while let Some(bytes) = self.machine.poll_transmit() {
            self.outbox.extend(bytes);
        }
        tcp::write(&self.stream, &mut self.outbox);
        let want_writes = !self.outbox.is_empty();
        if want_writes != self.watching_writes {
            let writes = if want_writes {
                EventFlags::OUT
            } else {
                EventFlags::empty()
            };
            watch.modify(&self.stream, EventFlags::IN | writes);
            self.watching_writes = want_writes;
        }
    }

    /// Returns whether a byte of the peer has come.
    pub(super) fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Returns whether the socket has taken everything.
    pub(super) fn has_written(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Returns the time at which there is something to do even if nothing arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.farewell {
            Some(farewell) => Some(farewell.until),
            None => self.machine.deadline(),
        }
    }

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant) -> bool {
        if !self.machine.is_sealed() || !self.outbox.is_empty() {
            return false;
        }
        self.farewell = Some(Farewell {
            until: now + FAREWELL,
            left: FAREWELL_BYTES,
        });
        self.stream.shutdown(Shutdown::Write).is_ok()
    }

    /// Tells whether the handshake is over, and the peer still has to hear why.
    pub(super) fn is_parting(&self) -> bool {
        self.farewell.is_some()
    }

    /// Reads on after [`begin_farewell`](Self::begin_farewell). Returns whether the peer may still
    /// be reading the reason.
    pub(super) fn hear_out(&mut self, now: Instant) -> bool {
        let Some(farewell) = &mut self.farewell else {
            return false;
        };
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match tcp::read(&self.stream, &mut buffer) {
                ReadOutcome::Bytes(bytes) if bytes.len() < farewell.left => {
                    farewell.left -= bytes.len();
                }
                ReadOutcome::Nothing => return now < farewell.until,
                _ => return false,
            }
        }
        true
    }
}

/// Length of one read, which is more than one end's half of any handshake of today.
const READ_BYTES: usize = 4096;

/// Most reads of one handshake before the next connection has its turn; unread bytes stay in the
/// socket.
const READS_PER_TURN: usize = 4;

/// The time for which a refused peer's bytes are read, and the most bytes. The peer closes as soon
/// as it has read the reason.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: usize = 64 << 10;
