//! The sessions of a log sender, one after the other.

use std::time::Instant;

use super::{LogError, error::LogFailure};
use crate::{Peer, peers::KeptPeer};

/// The source of a log sender's next session.
pub(super) enum SessionSource {
    /// The program, which accepts it, say: the session, or why there is none.
    Given(Result<Peer, String>),
    /// The node, which keeps connected to an address.
    Kept(KeptPeer),
}

impl SessionSource {
    /// Returns the session to go on in, if there is one now.
    pub(super) fn try_next(&mut self) -> Result<Option<Peer>, LogError> {
        match self {
            Self::Given(peer) => peer.clone().map(Some).map_err(no_session),
            Self::Kept(kept) => kept.try_next().map(not_over).transpose(),
        }
    }

    /// Waits for the session to go on in; `None` if there is none until the deadline.
    pub(super) fn next_until(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<Peer>, LogError> {
        match self {
            Self::Given(peer) => peer.clone().map(Some).map_err(no_session),
            Self::Kept(kept) => kept.next_until(deadline).map(not_over).transpose(),
        }
    }

    /// Returns the session to go on in, for a task.
    pub(super) async fn next_async(&mut self) -> Result<Peer, LogError> {
        match self {
            Self::Given(peer) => peer.clone().map_err(no_session),
            Self::Kept(kept) => not_over(kept.next_async().await),
        }
    }

    /// The words of a call that got no session in time.
    pub(super) fn missing(&self) -> String {
        match self {
            Self::Given(_) => "it has no session".to_owned(),
            Self::Kept(kept) => {
                let address = kept.address();
                let missing = format!("none of the peers that are kept is connected as {address}");
                match kept.failure() {
                    Some(failure) => format!("{missing}; the last attempt: {failure}"),
                    None => format!("{missing}; it is being dialed, or is not among them"),
                }
            }
        }
    }

    /// Notes that the session that was handed out last is over.
    pub(super) fn end(&mut self, why: impl ToString) {
        match self {
            Self::Given(peer) => {
                *peer = Err(format!(
                    "{}; give it the next by `go_on_with`",
                    why.to_string()
                ));
            }
            Self::Kept(kept) => kept.end(),
        }
    }
}

/// Returns the next session of a kept peer, unless the keeping has ended.
fn not_over(next: Option<Peer>) -> Result<Peer, LogError> {
    let why = "its address is not kept connected any more: the node was closed, or its `Peers` \
               were dropped";
    next.ok_or_else(|| no_session(why.to_owned()))
}

fn no_session(why: String) -> LogError {
    LogFailure::NoSession { why }.into()
}
