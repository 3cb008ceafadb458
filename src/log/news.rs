//! The place where a thread or a task waits for a far end's answer, or for any member of a group.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    task::{Poll, Wake, Waker},
    time::Instant,
};

use ibex_ring::parking::{AtSlot, ReadySet, Ticket, Wakers};
use ibex_transport::runtime::{Looks, Runtime};

/// News from everything that has its waker. There is at most one item, which says that there is some.
pub(super) struct LogNews {
    set: Arc<ReadySet<()>>,
    waker: Waker,
    /// The place of a task that waits.
    held: Option<Ticket>,
}

impl LogNews {
    pub(super) fn new() -> Self {
        let set = Arc::<ReadySet<()>>::default();
        Self {
            waker: Waker::from(Arc::new(NewsWaker(Arc::downgrade(&set)))),
            set,
            held: None,
        }
    }

    /// Returns the waker to leave wherever news may come from.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Forgets the news so far, because the caller is about to look everywhere.
    pub(super) fn forget(&self) {
        while self.set.pop().is_some() {}
    }

    /// Waits until there is news, or `is_done` returns true. Returns false if the time is up.
    pub(super) fn wait(
        &self,
        runtime: &Runtime,
        deadline: Option<Instant>,
        mut is_done: impl FnMut() -> bool,
    ) -> bool {
        let look = || (self.set.has_items() || is_done()).then_some(());
        let mut held = None;
        let condition = AtSlot::new(self.set.waiters(), &mut held, look);
        // The members' sessions may be those of several engines.
        runtime.wait(deadline, Looks::Socket, condition).is_ok()
    }

    /// Waits as [`wait`](Self::wait) does, for a task.
    pub(super) fn poll(
        &mut self,
        runtime: &Runtime,
        waker: &Waker,
        mut is_done: impl FnMut() -> bool,
    ) -> Poll<()> {
        let set = &self.set;
        let look = || (set.has_items() || is_done()).then_some(());
        runtime.poll_at(set.waiters(), &mut self.held, waker, look)
    }

    /// Takes back the waker of a task that does not wait any more.
    pub(super) fn leave(&mut self) {
        self.set.waiters().leave(&mut self.held);
    }
}

/// Leaves an item unless there is one, so that a source that wakes often adds none.
struct NewsWaker(Weak<ReadySet<()>>);

impl Wake for NewsWaker {
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
    fn news_are_told_once_until_they_are_forgotten() {
        let news = LogNews::new();
        (0..3).for_each(|_| news.waker().wake_by_ref());
        assert!(news.set.pop().is_some());
        assert!(!news.set.has_items());
        news.waker().wake_by_ref();
        news.forget();
        assert!(!news.set.has_items());
    }
}
