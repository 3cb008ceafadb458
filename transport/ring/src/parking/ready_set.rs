//! The set of sources that have changes for one waiter, who waits for all of them at one place.
//!
//! ```text
//!   source                          waiter
//!   push its item                   register at the slot
//!   (the slot's barriers order both)
//!   anyone waiting? wake            has items?
//!                                     yes: pop; look at these sources alone
//!                                     no: sleep
//! ```
//!
//! A source is anything that calls a waker. Its [waker](ReadySet::waker) leaves an item that says
//! which source it was, so sources without changes cost nothing. The push survives two races: the
//! waiter registers at the same time (model: loom_pushed_or_woken), or takes the items at the same
//! time (model: loom_no_item_stays_behind).

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    task::{Wake, Waker},
};

use ibex_base::sync::{AtomicBool, Mutex, MutexGuard, Ordering, lock};

use super::{WaitSlot, Wakers};

/// The items that sources have left, and the place where their taker waits.
///
/// The order is that of a [`WaitSlot`]: register at [`waiters`](Self::waiters), look at
/// [`has_items`](Self::has_items), sleep.
#[derive(Debug)]
pub struct ReadySet<T> {
    waiters: WaitSlot,
    /// True while there are items, written under their lock.
    has_items: AtomicBool,
    items: Mutex<VecDeque<T>>,
}

impl<T> ReadySet<T> {
    /// Creates a set without items.
    #[must_use]
    pub fn new() -> Self {
        Self {
            waiters: WaitSlot::new(),
            has_items: AtomicBool::new(false),
            items: Mutex::new(VecDeque::new()),
        }
    }

    /// Returns the place where the items' taker waits.
    pub fn waiters(&self) -> &WaitSlot {
        &self.waiters
    }

    /// Returns a waker that leaves the item that `make` makes, and wakes the waiters. The waker does
    /// not keep the set.
    pub fn waker(self: &Arc<Self>, make: impl Fn() -> T + Send + Sync + 'static) -> Waker
    where
        T: Send + 'static,
    {
        let set = Arc::downgrade(self);
        Waker::from(Arc::new(SourceWaker { set, make }))
    }

    /// Leaves an item and wakes the waiters; for callers that hold no lock.
    pub fn push(&self, item: T) {
        self.leave(|items| items.push_back(item));
        self.waiters.wake_all();
    }

    /// Leaves items as `change` does, and collects the waiters in `into`, to be woken when no lock
    /// is held.
    pub fn change(&self, change: impl FnOnce(&mut VecDeque<T>), into: &mut Wakers) {
        self.leave(change);
        self.waiters.take(into);
    }

    fn leave(&self, change: impl FnOnce(&mut VecDeque<T>)) {
        let mut items = self.items();
        change(&mut items);
        self.note(&items);
    }

    /// Returns whether there are items. A waiter that was not registered before may see an item only
    /// at a later check.
    #[inline]
    #[must_use]
    pub fn has_items(&self) -> bool {
        // The lock orders the items; the slot's barriers order this look after the registration.
        self.has_items.load(Ordering::Relaxed)
    }

    /// Takes the oldest item.
    #[inline]
    pub fn pop(&self) -> Option<T> {
        self.has_items().then(|| self.take()).flatten()
    }

    fn take(&self) -> Option<T> {
        let mut items = self.items();
        let item = items.pop_front();
        self.note(&items);
        item
    }

    /// Notes whether there are items, before they are unlocked.
    fn note(&self, items: &VecDeque<T>) {
        self.has_items.store(!items.is_empty(), Ordering::Relaxed);
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        lock(&self.items)
    }
}

impl<T> Default for ReadySet<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A source of events, as its waker.
struct SourceWaker<T, F> {
    set: Weak<ReadySet<T>>,
    make: F,
}

impl<T, F: Fn() -> T> Wake for SourceWaker<T, F> {
    fn wake(self: Arc<Self>) {
        if let Some(set) = self.set.upgrade() {
            set.push((self.make)());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Counts its wake-ups.
    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_source_says_which_it_was() {
        let set = Arc::new(ReadySet::new());
        let sources = [0, 1, 2].map(|number| set.waker(move || number));
        let count = Arc::new(Count::default());
        let _ticket = set.waiters().register(&count.clone().into());
        sources[2].wake_by_ref();
        sources[0].wake_by_ref();
        assert!(set.has_items());
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "it registered once");
        assert_eq!([set.pop(), set.pop(), set.pop()], [Some(2), Some(0), None]);
        assert!(!set.has_items());
    }

    #[test]
    fn items_come_in_order_and_their_wakers_are_the_callers() {
        let set = ReadySet::new();
        let count = Arc::new(Count::default());
        let _ticket = set.waiters().register(&count.clone().into());
        let mut wakers = Wakers::new();
        set.change(|items| items.extend([1, 2]), &mut wakers);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        wakers.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!([set.pop(), set.pop(), set.pop()], [Some(1), Some(2), None]);
    }

    #[test]
    fn the_waker_of_a_set_that_is_gone_does_nothing() {
        let set = Arc::new(ReadySet::new());
        let waker = set.waker(|| panic!("planted: the set is gone"));
        assert_eq!(
            Arc::into_inner(set).and_then(|set: ReadySet<()>| set.pop()),
            None
        );
        waker.wake();
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use ibex_base::sync::thread;

    /// A count outside of loom: it records an event for the test and orders nothing.
    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Mutants: light_missing, heavy_missing, woken_early.
    #[test]
    fn loom_pushed_or_woken() {
        loom::model(|| {
            let set = Arc::new(ReadySet::new());
            let source = set.waker(|| 7);
            let pushes = thread::spawn(move || source.wake());
            let woken = Arc::new(Count::default());
            let _ticket = set.waiters().register(&woken.clone().into());
            let seen = set.has_items();
            pushes.join().unwrap();
            assert!(seen || woken.0.load(Relaxed) == 1, "asleep for ever");
            assert_eq!(set.pop(), Some(7));
        });
    }

    /// Mutant: noted_late.
    #[test]
    fn loom_no_item_stays_behind() {
        loom::model(|| {
            let set = Arc::new(ReadySet::new());
            set.push(1);
            let source = set.waker(|| 2);
            let pushes = thread::spawn(move || source.wake());
            assert_eq!(set.pop(), Some(1));
            pushes.join().unwrap();
            assert_eq!(set.pop(), Some(2));
        });
    }
}
