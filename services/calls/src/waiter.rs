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
}
