//! What the two ends of a session over a queue pair tell each other.
#![forbid(unsafe_code)]

use super::connection::RemoteEndpoint;
use super::error::VerbsError;
use crate::engine::carriage::LEAST_BUFFER_BYTES;

/// One end's queue pair, and what may be sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairEndpoint {
    /// Where it is.
    pub pair: RemoteEndpoint,
    /// The length of its receive buffers: no frame is longer.
    pub buffer_bytes: u32,
    /// Buffers that the other end may fill before it hears more.
    pub credit: u32,
    /// The longest inline send that it makes.
    pub max_inline_bytes: u32,
    /// Pieces of one send of its.
    pub max_send_entries: u16,
    /// Pieces of one receive of its.
    pub max_receive_entries: u16,
}

/// With less than two, half of the budget would be nothing, and news of it due for ever.
pub(super) const LEAST_CREDIT: u32 = 2;

impl PairEndpoint {
    /// Checks what a peer says of itself.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let refused = |what, given| Err(VerbsError::PeerEndpoint { what, given });
        if (self.buffer_bytes as usize) < LEAST_BUFFER_BYTES {
            return refused("receive buffers of so many bytes", self.buffer_bytes);
        }
        if self.credit < LEAST_CREDIT {
            return refused("a credit of so many buffers", self.credit);
        }
        Ok(())
    }
}
