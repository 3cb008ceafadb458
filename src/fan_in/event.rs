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
    /// It is gone, or gave up, or sends what is not valid, has another type, or its channel could not be
    /// opened here. It goes on after an error that
    /// [spares the channel](RecvError::spares_channel).
    Lost(PeerAt, RecvError),
}
