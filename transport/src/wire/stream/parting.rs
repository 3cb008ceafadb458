//! The end of a connection while frames are under way, because its session is over, or because another
//! connection is to take its place: the frames that were begun are finished, and the peer receives the
//! goodbye, or the announced end of the TLS stream, behind them.
//!
//! The connection is not closed before the peer closes its end. A kernel that gets bytes for a closed
//! connection resets it, and with it what the peer has not read.
#![forbid(unsafe_code)]

use std::{
    io::{ErrorKind, Read},
    net::Shutdown,
    sync::Arc,
    time::Instant,
};

use super::{Layer, RecordLayer, outbound::Outbound};
use crate::wire::{Shut, WireSocket};

/// The state of such an end.
#[derive(Debug)]
pub(crate) struct Parting {
    /// The time at which the connection is closed in any case.
    until: Instant,
    /// Everything is written; the peer has yet to close its end.
    is_written: bool,
    /// The end of the TLS stream is still to be announced, behind the frames.
    announces: bool,
    /// Counts the connections of a node that are in this state without a session.
    _place: Option<Arc<()>>,
}

impl Parting {
    /// Begins the end of a connection: with a `place`, its session is over. Without one, the session
    /// goes on over another connection, which is announced.
    pub(crate) fn new(until: Instant, place: Option<Arc<()>>) -> Self {
        Self {
            until,
            is_written: false,
            announces: place.is_none(),
            _place: place,
        }
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Returns the progress, as a wire tells it.
    pub(super) fn poll(&self, now: Instant) -> Shut {
        match self.until <= now {
            true => Shut::Done {
                gave_up: Some("its peer did not read to the end in time".to_owned()),
            },
            false => Shut::Draining,
        }
    }

    /// Writes and reads as far as possible. Returns whether there is more to do.
    pub(super) fn go_on(
        &mut self,
        outbound: &mut Outbound,
        layer: &mut Layer,
        socket: &mut WireSocket,
    ) -> bool {
        if !self.is_written {
            if outbound.write(layer, socket.stream()).is_err() {
                return false;
            }
            if self.announces && outbound.is_empty() && !layer.has_backlog() {
                self.announces = false;
                if layer.end(socket.stream()).is_err() {
                    return false;
                }
            }
            self.is_written = outbound.is_empty() && !layer.has_backlog();
            if self.is_written && socket.stream().shutdown(Shutdown::Write).is_err() {
                return false;
            }
        }
        // What the peer still sends is of no use.
        let mut bytes = [0; 4096];
        for _ in 0..READS_PER_TURN {
            match socket.stream().read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    socket.is_drained();
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        socket.has_read(true, false);
        true
    }
}

/// Most reads of one turn, which the sessions of an engine share.
const READS_PER_TURN: usize = 64;
