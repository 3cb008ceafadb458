//! The requests of a session's handles to the engine that turns the session.

use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

use ibex_protocol::format::{
    control::{Ask, CloseReason, Role},
    record::Layout,
};
use ibex_ring::{Released, memory::RingLease};

use super::{Host, Mark, What};

/// The way of a session's handles to its engine.
///
/// Each request does nothing if the session is over. `runtime/host.rs` has those that need the
/// session's connection.
pub struct EngineRequests {
    /// The runtime that turns the engine.
    pub(crate) host: Arc<dyn Host>,
    pub(crate) session: u64,
}

impl EngineRequests {
    /// Leaves a mark that the prefix of a receiving end moved; `urgent` if the sender must learn of
    /// it now.
    pub(crate) fn mark_released(&self, end: u32, urgent: bool) {
        let session = self.session;
        self.host.mark(Mark::Released { session, end }, !urgent);
    }

    /// Wakes the engine for records in a ring that is cold (not shm).
    pub(crate) fn mark_ready(&self, end: u32) {
        let session = self.session;
        self.host.mark(Mark::Ready { session, end }, false);
    }

    /// Runs a turn where callers turn the engine, for a call that does not wait, or when enough
    /// bytes are queued.
    #[cold]
    pub(crate) fn poll(&self) {
        self.host.turn(self.session);
    }

    /// Hands the ring of a sending end over to the engine. Messages up to `from` were sent and
    /// released before.
    pub(crate) fn attach_ring(
        &self,
        end: u32,
        ring: Arc<RingLease>,
        layout: Layout,
        from: Released,
    ) {
        self.host.attach_ring(self.session, end, ring, layout, from);
    }

    pub(crate) fn pass_ring(&self, end: u32, capacity: usize, fd: OwnedFd) {
        self.host.pass_ring(self.session, end, capacity, fd);
    }

    pub(crate) fn ask(&self, end: u32, ask: Ask) {
        self.host.ask(self.session, end, ask);
    }

    /// Asks for an acknowledgement, which may have been asked for before.
    pub(crate) fn ask_once(&self, end: u32, sequence: u64) {
        self.host.ask_once(self.session, end, sequence);
    }

    pub(crate) fn close_sender(&self, end: u32, last: u64, reason: CloseReason) {
        self.host.close_sender(self.session, end, last, reason);
    }

    /// Returns the names of channels that the peer opened and this node did not.
    #[must_use]
    pub fn incoming(&self) -> Vec<(String, Role)> {
        self.host.incoming(self.session)
    }

    /// Has the engine check at `due` whether an end that is waited for is open.
    pub(crate) fn watch_opening(&self, due: Instant) {
        self.host.watch_opening(self.session, due);
    }

    /// Updates the account of a peer whose host is silent.
    pub(crate) fn note_answers(&self) {
        self.host.note_answers(self.session);
    }

    /// Reports something that a handle has noticed.
    pub(crate) fn tell(&self, what: What) {
        self.host.tell(self.session, what);
    }
}
