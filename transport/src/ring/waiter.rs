//! Where those who wait for one end of a channel leave their wakers.
//!
//! ```text
//!   waiter                          who makes it come true
//!   register                        publish
//!   (heavy barrier inside)          (light barrier inside)
//!   look again: there?              is_waiting?
//!     no: sleep                       take the wakers; later, wake them
//! ```
//!
//! The race it survives: what is waited for comes true between the waiter's
//! first look and its registration. The barriers order both sides' writes
//! before their reads, so either the second look finds it or `is_waiting` says
//! yes. Model: loom_registered_or_seen.
//!
//! Wakers are foreign code, so an engine takes them under its lock and calls
//! them after it.

use std::sync::PoisonError;
use std::task::Waker;

use super::{barrier::Asymmetry, wakers::Wakers};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// A place to wait at, for threads and tasks alike.
#[derive(Debug)]
pub struct WaitSlot {
    /// 1 while there are wakers, written under their lock.
    waiting: AtomicU32,
    asymmetry: Asymmetry,
    wakers: Mutex<Vec<Waker>>,
}

impl WaitSlot {
    /// Nobody waits.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// The same, where so many may wait without meeting the allocator.
    #[must_use]
    pub fn with_capacity(waiters: usize) -> Self {
        Self {
            waiting: AtomicU32::new(0),
            asymmetry: Asymmetry::of_process(),
            wakers: Mutex::new(Vec::with_capacity(waiters)),
        }
    }

    /// Leaves a waker. The caller must look again now and may sleep only if
    /// what it waits for is still not there.
    ///
    /// A waker that is here already stays the only one of its kind.
    pub fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        self.waiting.store(1, Ordering::Relaxed);
        drop(wakers);
        self.asymmetry.heavy_here();
    }

    /// Makes room for a waker, so that the first to wait meets no allocator.
    pub fn prepare(&self) {
        self.wakers().reserve(1);
    }

    /// Takes a waker back that is not needed any more. It may be on its way.
    pub fn deregister(&self, waker: &Waker) {
        let mut wakers = self.wakers();
        let mine = wakers.iter().position(|known| known.will_wake(waker));
        let waker = mine.map(|index| wakers.swap_remove(index));
        self.waiting
            .store(u32::from(!wakers.is_empty()), Ordering::Relaxed);
        drop(wakers);
        // Dropping is foreign code too.
        drop(waker);
    }

    /// Whether somebody waits: ask after making true what may be waited for.
    #[inline]
    #[must_use = "who waits must be woken"]
    pub fn is_waiting(&self) -> bool {
        self.asymmetry.light();
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Moves all wakers into `into`, to be woken when no lock is held. What may be waited
    /// for is true before.
    #[inline]
    pub fn take(&self, into: &mut Wakers) {
        if self.is_waiting() {
            self.take_all(into);
        }
    }

    fn take_all(&self, into: &mut Wakers) {
        let mut wakers = self.wakers();
        into.append(&mut wakers);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// Wakes everybody who waits now, if somebody does; for who holds no lock.
    pub fn wake_all(&self) {
        if !self.is_waiting() {
            return;
        }
        // Not those that register again while they are woken.
        let count = self.wakers().len();
        for _ in 0..count {
            self.wake_first();
        }
    }

    /// Wakes the one that has waited longest, if somebody waits; for who holds no lock.
    /// Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        self.is_waiting() && self.wake_first()
    }

    fn wake_first(&self) -> bool {
        let mut wakers = self.wakers();
        let first = (!wakers.is_empty()).then(|| wakers.remove(0));
        self.waiting
            .store(u32::from(!wakers.is_empty()), Ordering::Relaxed);
        drop(wakers);
        first.map(Waker::wake).is_some()
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        // Under this lock foreign code clones and compares wakers. If that
        // panics the list is whole all the same.
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for WaitSlot {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    /// Counts its wake-ups.
    #[derive(Default)]
    pub(super) struct Count(pub(super) AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        pub(super) fn get(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn each_waker_is_kept_and_woken_once() {
        let slot = super::WaitSlot::new();
        let (one, two) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let waker = one.clone().into();
        slot.register(&waker);
        slot.register(&waker);
        slot.register(&two.clone().into());
        assert!(slot.is_waiting());

        slot.wake_all();
        assert!(!slot.is_waiting());
        slot.wake_all();
        assert_eq!((one.get(), two.get()), (1, 1));
    }

    #[cfg(not(loom))]
    #[test]
    fn taken_wakers_are_the_takers_and_deregistered_ones_nobodys() {
        let slot = super::WaitSlot::new();
        let (one, two) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let waker = one.clone().into();
        slot.register(&waker);
        slot.register(&two.clone().into());
        slot.deregister(&waker);
        slot.deregister(&waker);
        assert!(slot.is_waiting());

        let mut wakers = super::Wakers::new();
        slot.take(&mut wakers);
        assert!(!slot.is_waiting());
        wakers.wake();
        assert_eq!((one.get(), two.get()), (0, 1));
    }

    #[cfg(not(loom))]
    #[test]
    fn who_registers_while_being_woken_waits_for_the_next_time() {
        struct Again(super::WaitSlot, AtomicU32);
        impl Wake for Again {
            fn wake(self: Arc<Self>) {
                self.1.fetch_add(1, Ordering::Relaxed);
                self.0.register(&self.clone().into());
            }
        }
        let again = Arc::new(Again(super::WaitSlot::new(), AtomicU32::new(0)));
        again.0.register(&again.clone().into());
        again.0.wake_all();
        again.0.wake_all();
        assert_eq!(again.1.load(Ordering::Relaxed), 2);
        assert!(again.0.is_waiting());
        // The slot holds its own owner: break the circle.
        again.0.take(&mut super::Wakers::new());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::tests::Count;
    use super::*;
    use crate::sync::{Arc, thread};

    /// Mutants: light_missing, heavy_missing.
    #[test]
    fn loom_registered_or_seen() {
        loom::model(|| {
            let published = Arc::new(AtomicU32::new(0));
            let slot = Arc::new(WaitSlot::new());
            let publisher = {
                let (published, slot) = (published.clone(), slot.clone());
                thread::spawn(move || {
                    published.store(1, Ordering::Release);
                    slot.wake_all();
                })
            };
            let woken = std::sync::Arc::new(Count::default());
            slot.register(&woken.clone().into());
            let seen = published.load(Ordering::Acquire) == 1;
            publisher.join().unwrap();
            assert!(seen || woken.get() == 1, "asleep for ever");
        });
    }
}
