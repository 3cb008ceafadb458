//! How a call waits: in its thread, or as a task that is polled again.

#![forbid(unsafe_code)]

use std::{
    task::{Poll, Waker},
    time::Instant,
};

use ibex_core::extend::{
    SessionShared,
    parking::{self, Condition},
};

/// The one who waits. All waits of calls are polls of this, also those of threads.
#[derive(Clone, Copy)]
pub(super) enum Waiter<'a> {
    /// A thread, which sleeps in the poll, up to this time. A poll that is pending has timed out.
    Thread(Option<Instant>),
    /// A task, which is polled again when its waker is called.
    Task(&'a Waker),
}

impl Waiter<'_> {
    /// Waits for a condition.
    #[inline]
    pub(super) fn poll<C: Condition>(
        self,
        session: &SessionShared,
        condition: C,
    ) -> Poll<C::Output> {
        match self {
            Self::Thread(deadline) => {
                let waited = session.wait_for(deadline, condition);
                waited.map_or(Poll::Pending, Poll::Ready)
            }
            Self::Task(waker) => parking::poll(condition, waker, || ()),
        }
    }

    /// Waits until `check` finds something. `set_waker` leaves the waker that is to be called when
    /// that may be so, or takes it back.
    pub(super) fn poll_until<T>(
        self,
        session: &SessionShared,
        check: impl FnMut() -> Option<T>,
        set_waker: impl FnMut(Option<&Waker>),
    ) -> Poll<T> {
        self.poll(session, WakerSet { check, set_waker })
    }
}

struct WakerSet<F, W> {
    check: F,
    set_waker: W,
}

impl<T, F: FnMut() -> Option<T>, W: FnMut(Option<&Waker>)> Condition for WakerSet<F, W> {
    type Output = T;

    fn check(&mut self) -> Option<T> {
        (self.check)()
    }

    fn register(&mut self, waker: &Waker) {
        (self.set_waker)(Some(waker));
    }

    fn leave(&mut self) {
        (self.set_waker)(None);
    }
}
