//! Events and errors of a fan-in's peers.

use ibex_transport::channel::RecvError;

#[allow(unused_imports, reason = "the documentation speaks of it")]
use super::FanIn;
use crate::{OpenError, PeerAt};

/// An event of one of a fan-in's peers; see [`FanIn::next`]. `M` is a [`Message`](crate::Message).
#[derive(Debug)]
pub enum FanInEvent<M> {
    /// A peer has opened its sender. A peer with several sessions joins once for each.
    Joined(PeerAt),
    /// The peer sent a message.
    Message(PeerAt, M),
    /// The peer closed its sender in order, and everything was received.
    Ended(PeerAt),
    /// The peer is gone, gave up, sent a message that is not valid, has another type, or its
    /// channel could not be opened here. The peer goes on after an error that [spares the
    /// channel](RecvError::spares_channel).
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
