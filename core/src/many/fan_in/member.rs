//! Peers of a fan-in.

use std::task::Waker;

use ibex_transport::channel::{RawMessage, ReceiveHandle};

use super::{FanInEvent, Opener};
use crate::PeerAt;

/// The end of one peer.
pub(super) struct FanInMember<O: Opener> {
    pub(super) peer: PeerAt,
    pub(super) handle: ReceiveHandle,
    pub(super) has_joined: bool,
    /// The state that the opener keeps from message to message.
    kept: O::Kept,

    // Signs of events.
    pub(super) is_hot: bool,
    /// Looks that found nothing since something was found.
    pub(super) silent: u32,

    // How the member tells.
    pub(super) waker: Waker,
}

impl<O: Opener> FanInMember<O> {
    /// Makes a member that is hot, because it may have sent already.
    pub(super) fn new(peer: PeerAt, handle: ReceiveHandle, kept: O::Kept, waker: Waker) -> Self {
        Self {
            peer,
            handle,
            has_joined: false,
            kept,
            is_hot: true,
            silent: 0,
            waker,
        }
    }

    /// Returns whether nothing is taken in from the peer, which tells when that is over.
    #[inline]
    pub(super) fn is_held_up(&self) -> bool {
        O::is_held_up(&self.kept)
    }

    /// Returns the peer, if its end was opened since the last check, or if it was held up.
    #[inline]
    pub(super) fn joins(&mut self) -> Option<PeerAt> {
        let joins = (!self.has_joined && self.handle.is_open()) || O::has_gone_on(&self.kept);
        joins.then(|| {
            self.has_joined = true;
            self.peer
        })
    }

    /// Makes an event of a message that the peer sent.
    #[inline]
    pub(super) fn sent(&mut self, raw: RawMessage) -> FanInEvent<O::Message> {
        self.silent = 0;
        match O::open(&self.handle, raw, &mut self.kept) {
            Ok(message) => FanInEvent::Message(self.peer, message),
            Err(error) => FanInEvent::Lost(self.peer, error.into()),
        }
    }
}
