//! The path of a session's data: memory that both processes map, or frames over its wire.
//!
//! A session has its path from its admission. If its wire breaks, messages in shared memory go on
//! without it, and frames wait for another wire, whose kind
//! [`FramePath`](crate::session::frame_path::FramePath) knows. What single ends do differently is in
//! `endpoint/send_path.rs` and `receive_path.rs`.

use std::sync::{Arc, atomic::Ordering};

use ibex_protocol::session::DataPath;

use super::{Driver, SessionShared};
use crate::{
    session::Suspension,
    shared_memory::{Bells, UnixWires},
};

/// The source that a waiting call looks at, which decides the cost of a poll. If a call waits for
/// several, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PollTarget {
    /// A word that the peer writes.
    Memory,
    /// The results of a turn of the engine, which looks at a device's completion queue.
    Queue,
    /// The results of a turn of the engine, which asks a socket.
    Socket,
}

/// The path of a session's data.
#[derive(Debug)]
pub(crate) enum SessionPath {
    /// Rings that both processes map.
    Mapped {
        /// The bells by which their engines wake each other.
        bells: Arc<Bells>,
        /// True if both processes run as one user. Only then a message is read where it lies,
        /// because the other process could rewrite it at any time.
        is_same_user: bool,
    },
    /// Frames over the session's wire.
    Framed,
}

impl SessionPath {
    /// Returns the path of a session with these sockets beside its connection, or without any.
    pub(crate) fn beside(unix: Option<&UnixWires>) -> Self {
        match unix {
            Some(unix) => Self::Mapped {
                bells: unix.bells.clone(),
                is_same_user: unix.is_same_user,
            },
            None => Self::Framed,
        }
    }

    /// Closes the descriptors of a session that is over.
    pub(super) fn close(&self) {
        if let Self::Mapped { bells, .. } = self {
            bells.close();
        }
    }
}

impl SessionShared {
    /// Returns where the messages of the session travel, as far as its frames differ by that.
    pub(crate) fn data_path(&self) -> DataPath {
        match &self.path {
            SessionPath::Mapped { .. } => DataPath::Mapped,
            SessionPath::Framed => DataPath::Framed,
        }
    }

    /// Returns the kind of poll that waiting calls of this session need.
    #[inline]
    #[must_use]
    pub fn poll_target(&self) -> PollTarget {
        match &self.path {
            SessionPath::Mapped { .. } => PollTarget::Memory,
            SessionPath::Framed if self.frame_path.is_over_pair() => PollTarget::Queue,
            SessionPath::Framed => PollTarget::Socket,
        }
    }

    /// Returns whether messages have to be copied before anyone reads them: they lie in memory that a
    /// process of another user writes.
    #[must_use]
    pub fn copies_messages(&self) -> bool {
        match &self.path {
            SessionPath::Mapped { is_same_user, .. } => !is_same_user,
            SessionPath::Framed => false,
        }
    }

    /// Returns the account of the present suspension, or of a peer whose host is silent, if that
    /// holds messages up. Messages in memory that both processes map go on without a connection.
    #[must_use]
    #[cold]
    pub fn cut_off(&self) -> Option<Arc<Suspension>> {
        match &self.path {
            SessionPath::Mapped { .. } => None,
            SessionPath::Framed => self.no_answer(),
        }
    }

    /// Wakes the peer's engine (shm).
    #[cold]
    pub(crate) fn ring_peer(&self) {
        if let SessionPath::Mapped { bells, .. } = &self.path
            && bells.ring()
        {
            self.counters.bells.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of queued bytes at which `send` runs a turn itself.
    pub(crate) fn transmit_at(&self, window_bytes: usize) -> usize {
        match (&self.path, self.node.driver()) {
            (SessionPath::Framed, Driver::Caller | Driver::Tasks) => {
                CALLER_BATCH_BYTES.min(window_bytes / 2)
            }
            _ => usize::MAX,
        }
    }

    /// Returns how many messages a receiver may hand out before it gives released ones back. Each
    /// message from a device occupies one of its receive buffers.
    pub(crate) fn most_held(&self) -> u64 {
        match self.poll_target() {
            PollTarget::Queue => BUFFERS_HELD,
            PollTarget::Memory | PollTarget::Socket => u64::MAX,
        }
    }
}

/// Bytes that `send` queues before it runs a turn itself, where there is no I/O thread. Writes of 5 KiB carry
/// 10–14 million records of 64 bytes per second, and writes of 32 KiB carry 40–75 million.
const CALLER_BATCH_BYTES: usize = 32 << 10;
/// Number of messages from a device that are handed out before released ones are given back.
const BUFFERS_HELD: u64 = 32;
