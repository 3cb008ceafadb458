//! Events and errors of a fan-in's peers.

#[allow(unused_imports, reason = "the documentation speaks of it")]
use super::FanIn;
use crate::{PeerAt, RecvError};

/// An event of one of a fan-in's peers; see [`FanIn::next`]. `M` is a [`Message`](crate::Message).
#[derive(Debug)]
pub enum FanInEvent<M> {
    /// A peer has opened its sender. A peer with several sessions joins once for each.
    Joined(PeerAt),
    /// The peer sent a message.
    Message(PeerAt, M),
    /// The peer closed its sender in order, and everything was received.
    Ended(PeerAt),
    /// The peer's channel failed: the peer is gone, broke the channel off, has another type or sent
    /// a message that is not valid, or the channel could not be opened here. The peer stays after
    /// an error that [spares the channel](RecvError::spares_channel), and is lost after any other.
    Lost(PeerAt, RecvError),
}
