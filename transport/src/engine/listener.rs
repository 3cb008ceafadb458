//! The source from which an engine hears of peers that dial.
#![forbid(unsafe_code)]

use std::{os::fd::BorrowedFd, time::Instant};

use super::Admission;
use crate::connection::NewWire;

/// The result of a handshake with a peer that dialed.
#[derive(Debug)]
pub enum Incoming {
    /// A session that begins.
    Session(Box<Admission>),
    /// Another connection for one that there is.
    Wires(Box<NewWire>),
}

/// A source of incoming sessions: a listener and its handshakes.
pub trait ControlSource: Send {
    /// Readable when [`turn`](Self::turn) has something to do.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Moves all handshakes on; returns what came of those that are finished.
    fn turn(&mut self, now: Instant) -> Vec<Incoming>;
    /// When to turn next although nothing is readable.
    fn next_deadline(&self) -> Option<Instant>;
    /// New sessions are refused from now on; those that there are go on.
    fn close(&mut self);
}
