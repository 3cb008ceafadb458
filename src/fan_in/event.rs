//! What a fan-in tells of its peers.

use ibex_transport::channel::RecvError;

#[allow(unused_imports, reason = "the documentation speaks of it")]
use super::FanIn;
use crate::{OpenError, PeerAt};

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
    Lost(PeerAt, FanInError),
}

/// What befell one peer of a [`FanIn`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FanInError {
    /// Receiving failed.
    #[error(transparent)]
    Recv(#[from] RecvError),
    /// Its channel could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Nothing came within the time given.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing came from any peer within the time-out")]
pub struct NothingCame;

ibex_base::debug_as_display!(FanInError, NothingCame);
