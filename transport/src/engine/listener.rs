//! The source from which an engine gets sessions and connections of peers that dial.
#![forbid(unsafe_code)]

use std::{os::fd::BorrowedFd, time::Instant};

use super::Admission;
use crate::connection::NewWire;

/// The result of a handshake with a peer that dialed.
#[derive(Debug)]
pub enum Incoming {
    /// A new session.
    Session(Box<Admission>),
    /// Another connection for an existing session.
    Wires(Box<NewWire>),
}

/// A source of incoming sessions: a listener and its handshakes.
pub trait ControlSource: Send {
    /// Returns a descriptor that is readable when [`turn`](Self::turn) has something to do.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Moves all handshakes on. Returns the results of those that have finished.
    fn turn(&mut self, now: Instant) -> Vec<Incoming>;
    /// Returns the time of the next turn if the descriptor does not become readable before.
    fn next_deadline(&self) -> Option<Instant>;
    /// Refuses new sessions from now on. Existing ones go on, over new connections if necessary.
    fn close(&mut self);
}
