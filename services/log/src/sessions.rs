//! The sessions of a log sender, one after the other.

use std::task::{Poll, Waker};

use ibex_core::{
    Peer,
    extend::{self, Runtime, fork},
};
use ibex_peers::extend::KeptPeer;

use super::{LogError, error::LogFailure};

/// The source of a log sender's next session.
pub(super) enum SessionSource {
    /// The program, which accepts it, say: the session, or why there is none.
    Given(Result<Peer, String>),
    /// The node, which keeps connected to an address.
    Kept(KeptPeer),
}

impl SessionSource {
    /// Polls for the session to go on in.
    pub(super) fn poll_next(&mut self, waker: &Waker) -> Poll<Result<Peer, LogError>> {
        match self {
            Self::Given(peer) => Poll::Ready(peer.clone().map_err(no_session)),
            Self::Kept(kept) => kept.poll_next(waker).map(not_over),
        }
    }

    /// Takes back the waker that a poll left.
    pub(super) fn leave(&mut self) {
        if let Self::Kept(kept) = self {
            kept.leave();
        }
    }

    /// Returns the runtime whose turns bring the session; `None` if the program gives it.
    pub(super) fn runtime(&self) -> Option<&Runtime> {
        match self {
            Self::Given(peer) => Some(extend::session(peer.as_ref().ok()?).runtime()),
            Self::Kept(kept) => Some(kept.runtime()),
        }
    }

    /// Returns the session that was handed out last, if it may last.
    pub(super) fn present(&self) -> Option<&Peer> {
        match self {
            Self::Given(peer) => peer.as_ref().ok(),
            Self::Kept(kept) => kept.present(),
        }
    }

    /// Returns the address that is kept connected, if the sessions come from there.
    pub(super) fn address(&self) -> Option<&str> {
        match self {
            Self::Given(_) => None,
            Self::Kept(kept) => Some(kept.address()),
        }
    }

    /// The words of a call that got no session in time.
    pub(super) fn missing(&self) -> String {
        match self {
            Self::Given(Ok(_)) => {
                "its last session has ended; give it the next by `go_on_with`".to_owned()
            }
            Self::Given(Err(why)) => why.clone(),
            Self::Kept(kept) if kept.present().is_some() => {
                let address = kept.address();
                format!("its session with {address} has ended; the next call looks for another")
            }
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
    next.ok_or_else(|| match fork::check(|| "a log sender".to_owned()) {
        Ok(()) => no_session(
            "its address is not kept connected any more: the node was closed, or its `Peers` were \
             dropped"
                .to_owned(),
        ),
        Err(forked) => no_session(forked.to_string()),
    })
}

fn no_session(why: String) -> LogError {
    LogFailure::NoSession { why }.into()
}
