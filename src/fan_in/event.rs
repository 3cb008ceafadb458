//! What a fan-in tells of its peers.

#[allow(unused_imports, reason = "the documentation speaks of it")]
use super::FanIn;
use crate::{PeerAt, RecvError};

/// What came of whom. See [`FanIn::next`]. `M` is a [`Message`](crate::Message).
#[derive(Debug)]
pub enum FanInEvent<M> {
    /// A peer has opened its sender. One with several sessions joins once for each.
    Joined(PeerAt),
    /// It sent a message.
    Message(PeerAt, M),
    /// It has closed its sender in order, and everything was received.
    Ended(PeerAt),
    /// It is gone, or gave up, or sends what is not valid, has another type, or its channel could not be
    /// opened here. It goes on after an error that
    /// [spares the channel](RecvError::spares_channel).
    Lost(PeerAt, RecvError),
}
