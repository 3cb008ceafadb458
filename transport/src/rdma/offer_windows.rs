//! The windows through which a session's peer reads large messages of this end.
//!
//! Rules:
//!
//! 1. A window is bound over the bytes of one message, for that message, and lets the peer read and
//!    do nothing else.
//! 2. The memory of a message is used for nothing else while its window is bound: it is kept until
//!    the request that invalidates the window is done, or the window is dropped before. Dropping
//!    takes the key from the peer at once, by a system call.

use std::ops::Range;

use ibex_protocol::transfer::rendezvous::{LARGE_PER_CHANNEL, RemoteMemory};
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
}

/// The windows of a session: enough for two channels that are always busy. The other messages go in
/// chunks.
const WINDOWS: usize = 2 * LARGE_PER_CHANNEL;

impl OfferWindows {
    /// Makes as many windows as a session uses, or the device has. This takes system calls.
    pub(super) fn make(rdma_port: &RdmaPort) -> Self {
        let mut windows = Self::default();
        while windows.0.len() < WINDOWS && windows.add(rdma_port) {}
        windows
    }

    fn add(&mut self, rdma_port: &RdmaPort) -> bool {
        let made = rdma_port.window().map(|window| OfferWindow {
            window,
            message: (0, 0),
        });
        let is_made = made.is_some();
        self.0.extend(made);
        is_made
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a window is free, if necessary one that takes the place of a dropped one.
    pub(crate) fn has_free(&mut self, rdma_port: &RdmaPort) -> bool {
        let is_free = |one: &OfferWindow| one.window.state() == WindowState::Free;
        self.0.iter().any(is_free) || self.0.len() < WINDOWS && self.add(rdma_port)
    }

    /// Lets the peer read a message, which lies at `range` of its registration, from when request
    /// `id` is done. There is [a free window](Self::has_free), and room in the send queue.
    pub(crate) fn bind(
        &mut self,
        pair: &mut QueuePair,
        id: WorkId,
        message: (u32, u64),
        (registered, range): (&RegisteredMessage, Range<usize>),
    ) -> Result<Option<RemoteMemory>, WindowError> {
        let mut windows = self.0.iter_mut();
        let free = windows.find(|one| one.window.state() == WindowState::Free);
        let Some(one) = free else {
            return Ok(None);
        };
        let bytes = range.len() as u64;
        let request = BindRequest::new(id, range, RegionAccess::REMOTE_READ);
        let place = pair.bind_window(&mut one.window, registered.region(), &request)?;
        one.message = message;
        Ok(RemoteMemory::new(place.address, place.rkey, bytes))
    }

    /// Returns whether the window of a message can be [invalidated](Self::invalidate). A window that
    /// is not bound yet is dropped instead, if there is one.
    pub(crate) fn is_bound(&mut self, message: (u32, u64)) -> bool {
        self.0
            .retain(|one| one.message != message || one.window.state() != WindowState::Binding);
        self.bound(message).is_some()
    }

    /// Lets the peer read a message no more, from when request `id` is done. There is room in the
    /// send queue.
    pub(crate) fn invalidate(
        &mut self,
        pair: &mut QueuePair,
        id: WorkId,
        message: (u32, u64),
    ) -> Result<(), WindowError> {
        match self.bound(message) {
            Some(window) => pair.invalidate_window(window, id),
            None => Ok(()),
        }
    }

    fn bound(&mut self, message: (u32, u64)) -> Option<&mut MemoryWindow> {
        let mut windows = self.0.iter_mut().map(|one| (one.message, &mut one.window));
        let is_it = |(of, window): &(_, &mut MemoryWindow)| {
            *of == message && window.state() == WindowState::Bound
        };
        windows.find(is_it).map(|(_, window)| window)
    }

    /// Drops the windows of messages that the peer may not read any more.
    pub(crate) fn keep(&mut self, is_readable: impl Fn(u32, u64) -> bool) {
        self.0.retain(|one| {
            let lets_in = matches!(
                one.window.state(),
                WindowState::Binding | WindowState::Bound
            );
            !lets_in || is_readable(one.message.0, one.message.1)
        });
    }

    /// Notes the completion of a request that binds or invalidates a window, if it is one.
    pub(crate) fn note(&mut self, completion: &WorkCompletion) {
        // A failure ends the queue pair, and all windows with it.
        let _ = self
            .0
            .iter_mut()
            .any(|one| one.window.take(completion) != Ok(false));
    }

    /// Drops all windows.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
