//! The place where a thread or a task waits for wake-ups from anywhere: a future, a far end's answer,
//! any member of a group.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use ibex_ring::parking::{self, AtSlot, ReadySet, Ticket, Wakers};

use super::{PollTarget, Runtime};

/// Wake-ups by everything that has the waker. There is at most one item, which says that there was
/// one.
pub struct WakeUps {
    set: Arc<ReadySet<()>>,
    waker: Waker,
    /// The place of a thread or task that waits by [`register`](Self::register).
    held: Option<Ticket>,
}

impl Default for WakeUps {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeUps {
    /// Makes the place, without a wake-up.
    #[must_use]
    pub fn new() -> Self {
        let set = Arc::<ReadySet<()>>::default();
        Self {
            waker: parking::waker_of(Arc::downgrade(&set), leave_one),
            set,
            held: None,
        }
    }

    /// Returns the waker to leave wherever wake-ups may come from.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Forgets the wake-ups so far, because the caller is about to look everywhere.
    pub fn forget(&self) {
        while self.set.pop().is_some() {}
    }

    /// Waits until there is a wake-up. Returns false if the time is up.
    pub fn wait(&self, runtime: &Runtime, deadline: Option<Instant>) -> bool {
        let check = || self.has_any().then_some(());
        let mut held = None;
        let condition = AtSlot::new(self.set.waiters(), &mut held, check);
        // What wakes may be sessions of several engines.
        runtime
            .wait(deadline, PollTarget::Socket, condition)
            .is_ok()
    }

    /// Returns whether there was a wake-up that is not forgotten.
    pub fn has_any(&self) -> bool {
        self.set.has_items()
    }

    /// Leaves the waker of a thread or task that waits, in place of an earlier one of its own.
    pub fn register(&mut self, waker: &Waker) {
        self.set.waiters().renew(&mut self.held, waker);
    }

    /// Runs a future on the calling thread, which turns the runtime's engines while it waits, if
    /// threads do so.
    pub fn block_on<F: Future>(runtime: &Runtime, future: F) -> F::Output {
        let (mut future, wake_ups) = (pin!(future), Self::new());
        let mut context = Context::from_waker(&wake_ups.waker);
        loop {
            wake_ups.forget();
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            wake_ups.wait(runtime, None);
        }
    }

    /// Takes back the waker of a thread or task that does not wait any more.
    pub fn leave(&mut self) {
        self.set.waiters().leave(&mut self.held);
    }
}

/// Leaves an item unless there is one, so that a source that wakes often adds none.
fn leave_one(set: &Arc<ReadySet<()>>) {
    let mut wakers = Wakers::new();
    set.change(|items| items.resize(1, ()), &mut wakers);
    wakers.wake();
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
