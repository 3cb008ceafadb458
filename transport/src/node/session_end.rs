//! A session's end, for tasks that wait for the end alone.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
};

use ibex_base::fork;
use ibex_ring::parking::{self, AtSlot, Ticket, WaitSlot, Wakers};

use super::{CloseReport, Undelivered};
use crate::session::EndCause;

/// The end of a session: its cause, and the wakers that wait for it.
#[derive(Debug, Default)]
pub struct Ending {
    /// The program closes this session alone.
    has_begun: AtomicBool,
    cause: OnceLock<EndCause>,
    /// The channels with messages that the peer is not known to hold, set before the cause.
    undelivered: OnceLock<Vec<Undelivered>>,
    pub(crate) waiters: WaitSlot,
}

impl Ending {
    /// Notes that the program closes this session alone.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Returns whether the program has begun to close this session alone, which may end later.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Notes what was not delivered by the end of the session, once.
    pub(crate) fn report(&self, undelivered: Vec<Undelivered>) {
        let _ = self.undelivered.set(undelivered);
    }

    /// Returns what was not delivered by the end of the session; `None` until it is over.
    pub(crate) fn close_report(&self) -> Option<CloseReport> {
        let undelivered = self.undelivered.get()?.clone();
        Some(CloseReport {
            undelivered,
            ..CloseReport::default()
        })
    }

    /// Notes that the session is over, once.
    pub(crate) fn came(&self, cause: &EndCause, wakers: &mut Wakers) {
        let _ = self.cause.set(cause.clone());
        self.waiters.take(wakers);
    }

    /// Returns the cause of the session's end. Until the session is over this is pending, with
    /// `waker` left under `held`. In a fork of the process it is pending for ever.
    pub fn poll(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<EndCause> {
        if fork::is_child() {
            return Poll::Pending;
        }
        let check = || self.cause.get().cloned();
        parking::poll(AtSlot::new(&self.waiters, held, check), waker, || ())
    }

    /// Returns the report of the session's close, for a task; pending until the session is over, as
    /// [`poll`](Self::poll).
    pub fn poll_closed(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<CloseReport> {
        self.poll(held, waker)
            .map(|_| self.close_report().unwrap_or_default())
    }

    /// Takes back the waker that [`poll`](Self::poll) left.
    pub fn leave(&self, held: &mut Option<Ticket>) {
        self.waiters.leave(held);
    }
}
