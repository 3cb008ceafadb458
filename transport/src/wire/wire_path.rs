//! What a wire does differently by the path of its session's messages, which the wire carries or
//! not.
#![forbid(unsafe_code)]

use ibex_protocol::session::DataPath;
use ibex_ring::memory::MemoryError;

use super::Tools;
use crate::session::SessionCounters;

/// The path of the messages of a wire's session.
#[derive(Clone, Copy, Debug)]
pub(super) struct WirePath(pub(super) DataPath);

impl WirePath {
    /// Allocates memory for arriving data in advance, so that arrivals over a network cause no
    /// allocation. A wire over a queue pair `has_buffers` for whole frames, and needs compact blocks
    /// alone, for the messages that are copied out of them.
    pub(super) fn make_room(self, has_buffers: bool, tools: &mut Tools) -> Result<(), MemoryError> {
        match self.0 {
            DataPath::Framed => {
                if !has_buffers {
                    tools.blocks.provide()?;
                }
                tools.compact_blocks.provide()
            }
            DataPath::Mapped => Ok(()),
        }
    }

    /// Returns whether every turn asks the connection for data. Otherwise epoll reports its few
    /// control frames.
    #[inline]
    pub(super) fn reads_every_turn(self) -> bool {
        self.0 == DataPath::Framed
    }

    /// Counts bytes that a connection has taken.
    pub(super) fn count_sent(self, bytes: usize, counters: &SessionCounters) {
        match self.0 {
            DataPath::Framed => counters.bytes_sent.add(bytes as u64),
            DataPath::Mapped => counters.control_bytes_sent.add(bytes as u64),
        }
    }

    /// Counts bytes that a connection has brought.
    pub(super) fn count_received(self, bytes: usize, counters: &SessionCounters) {
        match self.0 {
            DataPath::Framed => counters.bytes_received.add(bytes as u64),
            DataPath::Mapped => counters.control_bytes_received.add(bytes as u64),
        }
    }
}
