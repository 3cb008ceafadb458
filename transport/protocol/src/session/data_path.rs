//! The path of a session's messages, and what the protocol does differently on each path.
#![forbid(unsafe_code)]

use super::{EndChannel, LocalEnd, PeerMisbehaved, receive_channel::ReceiveChannel};

/// The path of a session's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// Frames carry records, and the counters of receiving ends.
    Framed,
    /// Records and counters are in memory that both processes map. Frames carry control messages
    /// only.
    Mapped,
}

impl DataPath {
    /// Checks that the peer may send a frame of data.
    #[inline(always)]
    pub(super) fn check_data_frame(self) -> Result<(), PeerMisbehaved> {
        match self {
            DataPath::Framed => Ok(()),
            DataPath::Mapped => Err(PeerMisbehaved::DataFrameBesideMemory),
        }
    }
}

impl LocalEnd {
    /// Returns whether the peer's end is open for records in frames.
    #[inline(always)]
    pub(super) fn takes_records(&self, path: DataPath) -> bool {
        path == DataPath::Framed && self.peer.is_some() && !self.closed_there
    }
}

impl EndChannel {
    /// Returns the channel of an open receiving end, if records arrive and counters go out in
    /// frames.
    pub(super) fn framed_receiver(&mut self, path: DataPath) -> Option<&mut ReceiveChannel> {
        match (path, self) {
            (DataPath::Framed, EndChannel::Receiver(Some(channel))) => Some(channel),
            _ => None,
        }
    }
}
