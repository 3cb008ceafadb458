//! A value that any thread with changes looks after, so that wakers never wait for a lock.
//!
//! ```text
//!   thread with changes          holder of the value
//!   is_notified = true            unlock
//!   fence                     fence
//!   try to lock               is_notified?
//!     locked by another: go     yes: look after it again
//! ```
//!
//! The fences order both sides' writes before their reads. So either the lock is found free, or its
//! holder finds the changes. Models: loom_changes_find_the_holder, loom_changes_come_when_it_is_free.

use std::sync::TryLockError;

use ibex_base::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence, lock};

/// A value behind a lock, and whether there were changes for it while a thread held it.
#[derive(Debug)]
pub struct Claimed<T> {
    is_notified: AtomicBool,
    value: Mutex<T>,
}

impl<T> Claimed<T> {
    /// Creates a value without changes.
    pub fn new(value: T) -> Self {
        Self {
            is_notified: AtomicBool::new(false),
            value: Mutex::new(value),
        }
    }

    /// Runs `act` on the value. If another holder has the value, that holder runs `act` when it
    /// leaves.
    pub fn run_claimed(&self, mut act: impl FnMut(&mut T)) {
        self.tell();
        while let Some(mut value) = self.try_hold() {
            self.take_changes();
            act(&mut value);
            if !self.unlock(value) {
                break;
            }
        }
    }

    /// Runs `act` while this thread does not hold the value. If the value has a holder, possibly
    /// this very thread, that holder finds [changes](Self::unlock) when it leaves.
    pub fn when_free(&self, mut act: impl FnMut()) {
        self.tell();
        while let Some(value) = self.try_hold() {
            if !self.unlock(value) || !self.take_changes() {
                break;
            }
            act();
        }
    }

    fn tell(&self) {
        // TOLD, pairs with `take_changes`: the thread that takes the flag sees what the changes are about.
        // A swap and not a store, which would overwrite the release of a thread that notified before
        // this one. Model: loom_changes_of_two_threads.
        self.is_notified.swap(true, Ordering::Release);
        // LOOK, pairs with `unlock`: the lock is tried after the flag is set.
        fence(Ordering::SeqCst);
    }

    fn take_changes(&self) -> bool {
        // TOLD, pairs with `tell`.
        self.is_notified.swap(false, Ordering::Acquire)
    }

    /// Returns the value, if it has no holder. Give it back by [`leave`](Self::leave) or
    /// [`unlock`](Self::unlock).
    pub fn try_hold(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until the value has no holder, and returns it. Must not be called inside a waker.
    pub fn hold(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// Gives the value back, and runs `act` on it if there were changes meanwhile.
    pub fn leave(&self, value: MutexGuard<'_, T>, act: impl FnMut(&mut T)) {
        if self.unlock(value) {
            self.run_claimed(act);
        }
    }

    /// Gives the value back. Returns whether there are changes that no thread has taken.
    #[must_use = "the news waits for it"]
    pub fn unlock(&self, value: MutexGuard<'_, T>) -> bool {
        drop(value);
        // LOOK, pairs with `tell`: the flag is read after the lock is free.
        fence(Ordering::SeqCst);
        self.is_notified.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn news_during_a_hold_is_looked_after_at_its_end() {
        let claimed = Claimed::new(0);
        let mut value = claimed.hold();
        *value = 1;
        claimed.run_claimed(|_| panic!("somebody holds it"));
        claimed.leave(value, |value| *value += 1);
        assert_eq!(*claimed.hold(), 2);
        // The changes were taken.
        claimed.leave(claimed.hold(), |_| panic!("there is no news"));
    }

    #[test]
    fn news_for_a_free_value_is_acted_on_without_the_lock() {
        let claimed = Claimed::new(());
        let mut acts = 0;
        claimed.when_free(|| {
            acts += 1;
            if acts == 1 {
                let held = claimed.hold();
                claimed.when_free(|| panic!("this thread holds it"));
                assert!(claimed.unlock(held), "the outer call acts on this news");
            }
        });
        assert_eq!(acts, 2);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use ibex_base::sync::{Arc, AtomicU32, thread};

    /// The fence in `unlock` has no mutant: loom's lock is a fence itself, which real ones are not.
    ///
    /// Mutant: notified_fence_missing.
    #[test]
    fn loom_changes_find_the_holder() {
        loom::model(|| {
            let claimed = Arc::new(Claimed::new(0));
            let changes = Arc::new(AtomicU32::new(0));
            let tells = {
                let (claimed, changes) = (claimed.clone(), changes.clone());
                thread::spawn(move || {
                    changes.store(1, Ordering::Relaxed);
                    claimed.run_claimed(|seen| *seen = changes.load(Ordering::Relaxed));
                })
            };
            let mut held = claimed.hold();
            *held = changes.load(Ordering::Relaxed);
            claimed.leave(held, |seen| *seen = changes.load(Ordering::Relaxed));
            tells.join().unwrap();
            assert_eq!(*claimed.hold(), 1);
        });
    }

    /// Two threads have changes at once. The one that looks after the value sees the changes of both, even
    /// if it notified last.
    ///
    /// Mutant: told_by_a_store.
    #[test]
    fn loom_changes_of_two_threads() {
        loom::model(|| {
            let claimed = Arc::new(Claimed::new(0));
            let changes = Arc::new(AtomicU32::new(0));
            let tells = {
                let (claimed, changes) = (claimed.clone(), changes.clone());
                thread::spawn(move || {
                    changes.store(1, Ordering::Relaxed);
                    claimed.run_claimed(|seen| *seen = changes.load(Ordering::Relaxed));
                })
            };
            claimed.run_claimed(|seen| *seen = changes.load(Ordering::Relaxed));
            tells.join().unwrap();
            assert_eq!(*claimed.hold(), 1);
        });
    }

    /// Mutant: notified_fence_missing.
    #[test]
    fn loom_changes_come_when_it_is_free() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let claimed = Arc::new(Claimed::new(()));
            let changes = Arc::new(AtomicU32::new(0));
            let seen = Arc::new(AtomicU32::new(0));
            let act = {
                let (changes, seen) = (changes.clone(), seen.clone());
                move || {
                    seen.fetch_max(changes.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            };
            let tells = {
                let (claimed, changes, act) = (claimed.clone(), changes.clone(), act.clone());
                thread::spawn(move || {
                    changes.store(1, Ordering::Relaxed);
                    claimed.when_free(act);
                })
            };
            let held = claimed.hold();
            act();
            if claimed.unlock(held) {
                claimed.when_free(act);
            }
            tells.join().unwrap();
            assert_eq!(seen.load(Ordering::Relaxed), 1);
        });
    }
}
