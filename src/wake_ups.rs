//! The place where a thread or a task waits for wake-ups from anywhere: a future, a far end's answer,
//! any member of a group.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use ibex_ring::parking::{AtSlot, ReadySet, Ticket, Wakers};
use ibex_transport::runtime::{Looks, Runtime};

/// Wake-ups by everything that has the waker. There is at most one item, which says that there was
/// one.
pub(crate) struct WakeUps {
    set: Arc<ReadySet<()>>,
    waker: Waker,
    /// The place of a task that waits.
    held: Option<Ticket>,
}

impl WakeUps {
    pub(crate) fn new() -> Self {
        let set = Arc::<ReadySet<()>>::default();
        Self {
            waker: Waker::from(Arc::new(SharedWakeUps(Arc::downgrade(&set)))),
            set,
            held: None,
        }
    }

    /// Returns the waker to leave wherever wake-ups may come from.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Forgets the wake-ups so far, because the caller is about to look everywhere.
    pub(crate) fn forget(&self) {
        while self.set.pop().is_some() {}
    }

    /// Waits until there is a wake-up, or `is_done` returns true. Returns false if the time is up.
    pub(crate) fn wait(
        &self,
        runtime: &Runtime,
        deadline: Option<Instant>,
        mut is_done: impl FnMut() -> bool,
    ) -> bool {
        let look = || (self.set.has_items() || is_done()).then_some(());
        let mut held = None;
        let condition = AtSlot::new(self.set.waiters(), &mut held, look);
        // What wakes may be sessions of several engines.
        runtime.wait(deadline, Looks::Socket, condition).is_ok()
    }

    /// Waits as [`wait`](Self::wait) does, for a task.
    pub(crate) fn poll(
        &mut self,
        runtime: &Runtime,
        waker: &Waker,
        mut is_done: impl FnMut() -> bool,
    ) -> Poll<()> {
        let set = &self.set;
        let look = || (set.has_items() || is_done()).then_some(());
        runtime.poll_at(set.waiters(), &mut self.held, waker, look)
    }

    /// Runs a future on the calling thread, which turns the runtime's engines while it waits, if
    /// threads do so.
    pub(crate) fn block_on<F: Future>(runtime: &Runtime, future: F) -> F::Output {
        let (mut future, wake_ups) = (pin!(future), Self::new());
        let mut context = Context::from_waker(&wake_ups.waker);
        loop {
            wake_ups.forget();
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            wake_ups.wait(runtime, None, || false);
        }
    }

    /// Takes back the waker of a task that does not wait any more.
    pub(crate) fn leave(&mut self) {
        self.set.waiters().leave(&mut self.held);
    }
}

/// Leaves an item unless there is one, so that a source that wakes often adds none.
struct SharedWakeUps(Weak<ReadySet<()>>);

impl Wake for SharedWakeUps {
    fn wake(self: Arc<Self>) {
        let Some(set) = self.0.upgrade() else {
            return;
        };
        let mut wakers = Wakers::new();
        let leave_one = |items: &mut VecDeque<()>| items.resize(1, ());
        set.change(leave_one, &mut wakers);
        wakers.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_count_once_until_they_are_forgotten() {
        let wake_ups = WakeUps::new();
        (0..3).for_each(|_| wake_ups.waker().wake_by_ref());
        assert!(wake_ups.set.pop().is_some());
        assert!(!wake_ups.set.has_items());
        wake_ups.waker().wake_by_ref();
        wake_ups.forget();
        assert!(!wake_ups.set.has_items());
    }
}
