//! A session's end, for tasks that wait for the end alone.

use std::{
    sync::OnceLock,
    task::{Poll, Waker},
};

use ibex_base::fork;
use ibex_ring::parking::{self, AtSlot, Ticket, WaitSlot, Wakers};

use super::{CloseReport, SessionShared, Undelivered};
use crate::session::EndCause;

/// Cause of a session's end, and the wakers that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    cause: OnceLock<EndCause>,
    /// The channels with messages that the peer is not known to hold, set before the cause.
    undelivered: OnceLock<Vec<Undelivered>>,
    pub(crate) waiters: WaitSlot,
}

impl Ending {
    /// Notes what was not delivered by the end of the session, once.
    pub(crate) fn report(&self, undelivered: Vec<Undelivered>) {
        let _ = self.undelivered.set(undelivered);
    }
}

impl SessionShared {
    /// Returns what was not delivered by the end of the session; `None` until it is over.
    pub(crate) fn close_report(&self) -> Option<CloseReport> {
        let undelivered = self.ending.undelivered.get()?.clone();
        Some(CloseReport {
            undelivered,
            ..CloseReport::default()
        })
    }

    /// Notes that the session is over, once.
    pub(crate) fn ended(&self, cause: &EndCause, wakers: &mut Wakers) {
        let _ = self.ending.cause.set(cause.clone());
        self.ending.waiters.take(wakers);
        self.node.draining.take_waiters(wakers);
    }

    /// Returns the cause of the session's end. Until the session is over this is pending, with
    /// `waker` left under `held`. In a fork of the process it is pending for ever.
    pub fn poll_ended(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<EndCause> {
        if fork::is_child() {
            return Poll::Pending;
        }
        let look = || self.ending.cause.get().cloned();
        parking::poll(AtSlot::new(&self.ending.waiters, held, look), waker, || ())
    }

    /// Returns the report of a session's close, for a task; pending until the session is over, as
    /// [`poll_ended`](Self::poll_ended).
    pub fn poll_closed(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<CloseReport> {
        self.poll_ended(held, waker)
            .map(|_| self.close_report().unwrap_or_default())
    }

    /// Takes back the waker that [`poll_ended`](Self::poll_ended) left.
    pub fn leave_ended(&self, held: &mut Option<Ticket>) {
        self.ending.waiters.leave(held);
    }
}
