//! A session's end, for tasks that wait for the end alone.

use std::{
    sync::OnceLock,
    task::{Poll, Waker},
};

use ibex_base::fork;
use ibex_ring::parking::{Ticket, WaitSlot, Wakers};

use super::SessionShared;
use crate::session::EndCause;

/// Cause of a session's end, and the wakers that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    cause: OnceLock<EndCause>,
    waiters: WaitSlot,
}

impl SessionShared {
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
        self.ending.waiters.renew(held, waker);
        match self.ending.cause.get() {
            Some(cause) => {
                self.ending.waiters.leave(held);
                Poll::Ready(cause.clone())
            }
            None => Poll::Pending,
        }
    }

    /// Takes back the waker that [`poll_ended`](Self::poll_ended) left.
    pub fn leave_ended(&self, held: &mut Option<Ticket>) {
        if !fork::is_child() {
            self.ending.waiters.leave(held);
        }
    }
}
