//! The windows through which a session's peer reads large messages of this end.
//!
//! Rules:
//!
//! 1. A window is bound over the bytes of one message, for that message, and lets the peer read and
//!    do nothing else.
//! 2. The memory of a message is used for nothing else while its window is bound: it is kept until
//!    the request that invalidates the window is done, or the queue pair is destroyed.
//! 3. Windows are made when their queue pair is connected to a peer that reads, and destroyed with
//!    it. In between there is no system call.

use std::{iter, ops::Range};

use ibex_protocol::transfer::rendezvous::RemoteMemory;
use ibex_verbs::{
    BindRequest, MemoryWindow, QueuePair, RegionAccess, WindowError, WindowState, WorkCompletion,
    WorkId,
};

use super::{RdmaPort, RegisteredMessage};

/// The windows of one session.
#[derive(Debug, Default)]
pub(crate) struct OfferWindows(Vec<OfferWindow>);

#[derive(Debug)]
struct OfferWindow {
    window: MemoryWindow,
    /// The sending end and the sequence of the message that it was bound for last.
    message: (u32, u64),
    /// On a rail, the last request of the session's queue pair when the peer was to read no more.
    revoked_at: Option<u64>,
}

impl OfferWindow {
    /// Returns whether the peer may read, now or once it is bound.
    fn lets_in(&self) -> bool {
        matches!(
            self.window.state(),
            WindowState::Binding | WindowState::Bound
        )
    }
}

impl OfferWindows {
    /// Makes the windows of a session, as many as the device has. This takes system calls.
    pub(super) fn make(rdma_port: &RdmaPort) -> Self {
        let made = iter::repeat_with(|| rdma_port.window())
            .take(rdma_port.windows())
            .map_while(|window| window);
        let unused = |window| OfferWindow {
            window,
            message: (0, 0),
            revoked_at: None,
        };
        Self(made.map(unused).collect())
    }

    /// Returns whether no window lets the peer in, or might.
    pub(crate) fn are_free(&self) -> bool {
        let mut windows = self.0.iter();
        windows.all(|one| one.window.state() == WindowState::Free)
    }

    /// Lets the peer read a message, which lies at `range` of its registration, from when request
    /// `id` is done. There is room in the send queue. Returns `None`, and has posted nothing, if no
    /// window is free or it cannot be bound.
    pub(crate) fn bind(
        &mut self,
        pair: &mut QueuePair,
        id: WorkId,
        message: (u32, u64),
        (registered, range): (&RegisteredMessage, Range<usize>),
    ) -> Option<RemoteMemory> {
        let is_free = |one: &&mut OfferWindow| one.window.state() == WindowState::Free;
        let one = self.0.iter_mut().find(is_free)?;
        let bytes = range.len() as u64;
        let request = BindRequest::new(id, range, RegionAccess::REMOTE_READ);
        let bound = pair.bind_window(&mut one.window, registered.region(), &request);
        let place = bound
            .inspect_err(|error| tracing::debug!(%error, "a large message goes in chunks"))
            .ok()?;
        (one.message, one.revoked_at) = (message, None);
        let memory = RemoteMemory::new(place.address, place.rkey, bytes);
        Some(memory.expect("a message has bytes, and memory an address"))
    }

    /// Lets the peer read a message no more, from when request `id` is done. There is room in the
    /// send queue. Returns whether the peer might read it before.
    pub(crate) fn revoke(
        &mut self,
        pair: &mut QueuePair,
        id: WorkId,
        message: (u32, u64),
    ) -> Result<bool, WindowError> {
        let is_its = |one: &&mut OfferWindow| one.message == message && one.lets_in();
        let Some(one) = self.0.iter_mut().find(is_its) else {
            return Ok(false);
        };
        pair.invalidate_window(&mut one.window, id).map(|()| true)
    }

    /// Takes from the peer the right to read a message over a rail, whose queue pair is `live` or has
    /// failed. `at` is the last request of the session's queue pair. There is room in the rail's send
    /// queue. Returns whether a request was posted.
    pub(crate) fn revoke_at(
        &mut self,
        live: Option<(&mut QueuePair, WorkId)>,
        message: (u32, u64),
        at: u64,
    ) -> Result<bool, WindowError> {
        let is_its = |one: &&mut OfferWindow| {
            let is_open = one.window.state() != WindowState::Free;
            one.message == message && is_open && one.revoked_at.is_none()
        };
        let Some(one) = self.0.iter_mut().find(is_its) else {
            return Ok(false);
        };
        one.revoked_at = Some(at);
        match live.filter(|_| one.lets_in()) {
            Some((pair, id)) => pair.invalidate_window(&mut one.window, id).map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the earliest moment at which the peer was to read a message no more, of those messages
    /// that it might still read.
    pub(crate) fn earliest_revoked(&self) -> Option<u64> {
        let open = self
            .0
            .iter()
            .filter(|one| one.window.state() != WindowState::Free);
        open.filter_map(|one| one.revoked_at).min()
    }

    /// Returns a message that the peer may read and that `is_out` no more.
    pub(crate) fn stale(&self, is_out: impl Fn(u32, u64) -> bool) -> Option<(u32, u64)> {
        let is_open = |one: &&OfferWindow| one.lets_in() && one.revoked_at.is_none();
        let open = self.0.iter().filter(is_open);
        let mut messages = open.map(|one| one.message);
        messages.find(|&(end, sequence)| !is_out(end, sequence))
    }

    /// Notes the completion of a request that binds or invalidates a window, if it is one. Returns the
    /// message that the peer may read from now on, if there is one, and its key.
    pub(crate) fn note(&mut self, completion: &WorkCompletion) -> Option<((u32, u64), u32)> {
        // A failure ends the queue pair, and all windows with it.
        let mut windows = self.0.iter_mut();
        let one = windows.find_map(|one| match one.window.take(completion) {
            Ok(false) => None,
            Ok(true) | Err(_) => Some(one),
        })?;
        let is_offered = one.window.state() == WindowState::Bound && one.revoked_at.is_none();
        is_offered.then(|| (one.message, one.window.key().to_raw()))
    }

    /// Destroys all windows.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
