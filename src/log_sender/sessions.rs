//! The sessions of a log sender, one after the other.

use std::task::{Context, Poll};

use ibex_transport::driver::Patience;

use super::LogError;
use crate::Peer;

/// The source of a log sender's next session.
#[derive(Debug)]
pub(super) enum Sessions {
    /// From the program, which accepts it, say.
    Given(Option<Peer>),
}

impl Sessions {
    /// The session to go on in; `None` if there is none in time.
    pub(super) fn next(&mut self, _patience: Patience) -> Result<Option<Peer>, LogError> {
        match self {
            Self::Given(peer) => peer.clone().map(Some).ok_or(LogError::NoSession),
        }
    }

    /// Does the same for a task.
    pub(super) fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Result<Peer, LogError>> {
        match self {
            Self::Given(peer) => Poll::Ready(peer.clone().ok_or(LogError::NoSession)),
        }
    }

    /// Looks whether the log sender goes on in another session without the program.
    pub(super) fn has_more(&self) -> bool {
        match self {
            Self::Given(peer) => peer.is_some(),
        }
    }

    /// The session that [`next`](Self::next) gave is over.
    pub(super) fn end(&mut self) {
        match self {
            Self::Given(peer) => *peer = None,
        }
    }
}
