//! What a fan-in tells of its peers.

use std::fmt;

use ibex_transport::channel::RecvError;

#[allow(unused_imports, reason = "the documentation speaks of it")]
use super::FanIn;
use crate::{KnownVersions, OneVersion, OpenError, PeerAt, message::DefaultCodec};

/// What came of whom. See [`FanIn::next`].
pub enum FanInEvent<T: ?Sized, C = DefaultCodec, V: KnownVersions<T, C> = OneVersion> {
    /// A peer has opened its sender. One with several sessions joins once for each.
    Joined(PeerAt),
    /// It sent a message.
    Message(PeerAt, V::Message),
    /// It has closed its sender in order, and everything was received.
    Ended(PeerAt),
    /// It is gone, or gave up, or sends what is not valid, has another type, or its channel could not be
    /// opened here. It goes on after an error that
    /// [spares the channel](RecvError::spares_channel).
    Lost(PeerAt, FanInError),
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> fmt::Debug for FanInEvent<T, C, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(peer) => f.debug_tuple("Joined").field(peer).finish(),
            Self::Message(peer, message) => {
                let sequence = V::sequence(message);
                f.debug_tuple("Message")
                    .field(peer)
                    .field(&sequence)
                    .finish()
            }
            Self::Ended(peer) => f.debug_tuple("Ended").field(peer).finish(),
            Self::Lost(peer, error) => f.debug_tuple("Lost").field(peer).field(error).finish(),
        }
    }
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
