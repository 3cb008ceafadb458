//! The description that the two ends of a session over a queue pair exchange.
#![forbid(unsafe_code)]

use ibex_protocol::framing::LEAST_BUFFER_BYTES;

use ibex_verbs::{ReadLimits, RemoteEndpoint, VerbsError};

use super::{
    port_error::PortError,
    prepared_rail::{MOST_RAILS, RailEndpoint},
};

/// The queue pair of one end, and the limits on what may be sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairEndpoint {
    /// The address of the queue pair.
    pub pair: RemoteEndpoint,
    /// The length of the end's receive buffers, which no frame exceeds.
    pub buffer_bytes: u32,
    /// Buffers that the other end may fill before it gets more credit; 0 if a broker lends them.
    pub credit: u32,
    /// The longest inline send of the end.
    pub max_inline_bytes: u32,
    /// Most pieces of one send of the end.
    pub max_send_entries: u16,
    /// Most pieces of one receive of the end.
    pub max_receive_entries: u16,
    /// True if the end accepts immediate data and makes writes with it.
    pub immediate: bool,
    /// The reads of large messages that the end makes at a time, and those of the peer that it
    /// serves; 0 if it makes or serves none.
    pub reads: ReadLimits,
    /// The rails that the end has prepared, the first ones of the list.
    pub rails: [Option<RailEndpoint>; MOST_RAILS],
}

impl PairEndpoint {
    /// Checks a peer's description of itself.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        if (self.buffer_bytes as usize) < LEAST_BUFFER_BYTES {
            return Err(PortError::PeerEndpoint {
                what: "receive buffers of so many bytes",
                given: self.buffer_bytes,
            }
            .into());
        }
        Ok(())
    }
}
