//! The sessions of a log sender, one after the other.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use ibex_ring::parking::{Patience, Ticket};

use super::{LogError, error::LogFailure};
use crate::{Peer, peers::Board};

/// The source of a log sender's next session.
pub(super) enum SessionSource {
    /// The program, which accepts it, say: the session, or why there is none.
    Given(Result<Peer, String>),
    /// The node, which keeps connected to an address.
    Kept(KeptPeer),
}

pub(super) struct KeptPeer {
    board: Arc<Board>,
    address: String,
    /// The session that was handed out last.
    last: Option<Peer>,
    /// The last session is over, whether the board shows it or not.
    is_over: bool,
    /// A task's place among the tasks that wait at the board.
    held: Option<Ticket>,
}

impl SessionSource {
    pub(super) fn kept(board: Arc<Board>, address: String) -> Self {
        Self::Kept(KeptPeer {
            board,
            address,
            last: None,
            is_over: false,
            held: None,
        })
    }

    /// The session to go on in; `None` if there is none in time.
    pub(super) fn next(&mut self, patience: Patience) -> Result<Option<Peer>, LogError> {
        match self {
            Self::Given(peer) => peer.clone().map(Some).map_err(no_session),
            Self::Kept(kept) => {
                let next = kept.board.next_peer(&kept.address, kept.ended(), patience);
                next.map(|next| kept.hand_out(next)).transpose()
            }
        }
    }

    /// Does the same for a task.
    pub(super) fn next_async(&mut self) -> NextAsync<'_> {
        NextAsync(self)
    }

    /// The words of a call that got no session in time.
    pub(super) fn missing(&self) -> String {
        match self {
            Self::Given(_) => "it has no session".to_owned(),
            Self::Kept(kept) => {
                let address = &kept.address;
                let missing = format!("none of the peers that are kept is connected as {address}");
                match kept.board.failure(address) {
                    Some(failure) => format!("{missing}; the last attempt: {failure}"),
                    None => format!("{missing}; it is being dialed, or is not among them"),
                }
            }
        }
    }

    /// The session that [`next`](Self::next) gave is over.
    pub(super) fn end(&mut self, why: impl ToString) {
        match self {
            Self::Given(peer) => {
                *peer = Err(format!(
                    "{}; give it the next by `go_on_with`",
                    why.to_string()
                ));
            }
            Self::Kept(kept) => kept.is_over = true,
        }
    }
}

impl KeptPeer {
    fn ended(&self) -> Option<&Peer> {
        self.last.as_ref().filter(|_| self.is_over)
    }

    /// `None` says that the keeping has ended.
    fn hand_out(&mut self, next: Option<Peer>) -> Result<Peer, LogError> {
        let why = "its address is not kept connected any more: the node was closed, or its `Peers` \
                   were dropped";
        let peer = next.ok_or_else(|| no_session(why.to_owned()))?;
        self.last = Some(peer.clone());
        self.is_over = false;
        Ok(peer)
    }
}

fn no_session(why: String) -> LogError {
    LogFailure::NoSession { why }.into()
}

/// The next session, for a task.
pub(super) struct NextAsync<'a>(&'a mut SessionSource);

impl Future for NextAsync<'_> {
    type Output = Result<Peer, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self.get_mut().0 {
            SessionSource::Given(peer) => Poll::Ready(peer.clone().map_err(no_session)),
            SessionSource::Kept(kept) => {
                let ended = kept.last.as_ref().filter(|_| kept.is_over);
                let (address, held) = (&kept.address, &mut kept.held);
                let next = kept.board.poll_peer(address, ended, held, context.waker());
                let next = ready!(next);
                Poll::Ready(kept.hand_out(next))
            }
        }
    }
}

impl Drop for NextAsync<'_> {
    fn drop(&mut self) {
        if let SessionSource::Kept(kept) = &mut *self.0 {
            kept.board.leave(&mut kept.held);
        }
    }
}
