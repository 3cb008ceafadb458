//! Wakers on their way from the places where threads wait to the thread that calls them.
//!
//! Wakers are collected under a lock and called after it. The list belongs to its thread and is
//! used again and again, so that waking allocates nothing. It is fetched with the first waker, so
//! that a turn that wakes no waiter pays nothing.
#![forbid(unsafe_code)]

use std::{
    cell::Cell,
    mem::{self, ManuallyDrop},
    sync::{Arc, Weak},
    task::{Wake, Waker},
};

use ibex_base::call_foreign;

/// Wakers to be called. Wakers that were not called are dropped with the list.
#[derive(Debug, Default)]
pub struct Wakers(ManuallyDrop<Vec<Waker>>);

thread_local! {
    static KEPT: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

impl Wakers {
    /// Creates an empty list.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(ManuallyDrop::new(Vec::new()))
    }

    /// Returns whether the list is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the list was never used. If so, there is nothing to drop either.
    #[inline]
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.0.capacity() == 0
    }

    /// Gets the calling thread a list, so that the thread allocates before it waits and not when it
    /// first wakes a waiter.
    pub fn prepare() {
        let _ = KEPT.try_with(|kept| {
            let mut list = kept.take();
            list.reserve(1);
            kept.set(list);
        });
    }

    /// Takes over all of `wakers`.
    pub fn extend(&mut self, wakers: impl Iterator<Item = Waker>) {
        if self.is_untouched() {
            // While the thread's locals are destroyed, no kept list exists.
            self.0 = ManuallyDrop::new(KEPT.try_with(Cell::take).unwrap_or_default());
        }
        self.0.extend(wakers);
    }

    /// Calls all wakers, also those behind one that panics; for callers that hold no lock.
    pub fn wake(&mut self) {
        self.0.drain(..).for_each(call);
    }
}

/// Calls a waker, which is foreign code. A panic is logged and has no other effect: the thread that
/// wakes has other waiters to wake, and is not to blame.
pub(super) fn call(waker: Waker) {
    if let Err(panic) = call_foreign(|| waker.wake()) {
        tracing::error!(panic, "a waker panicked; its task may not be polled again");
    }
}

impl Drop for Wakers {
    #[inline]
    fn drop(&mut self) {
        if !self.is_untouched() {
            keep(mem::take(&mut self.0));
        }
    }
}

#[cold]
fn keep(mut list: Vec<Waker>) {
    // Drops wakers that were not called.
    list.clear();
    let _ = KEPT.try_with(|kept| kept.set(list));
}

/// Returns a waker that acts on a value, and keeps nothing alive: once the value is gone, it does
/// nothing.
pub fn waker_of<T, F>(value: Weak<T>, act: F) -> Waker
where
    T: Send + Sync + 'static,
    F: Fn(&Arc<T>) + Send + Sync + 'static,
{
    Waker::from(Arc::new(WeakWaker { value, act }))
}

struct WeakWaker<T, F> {
    value: Weak<T>,
    act: F,
}

impl<T, F: Fn(&Arc<T>)> Wake for WeakWaker<T, F> {
    fn wake(self: Arc<Self>) {
        if let Some(value) = self.value.upgrade() {
            (self.act)(&value);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };
    use std::task::Wake;

    use super::*;
    use crate::parking::WaitSlot;

    /// Panics when it is used for the first time.
    #[derive(Default)]
    struct PanicsOnce(AtomicU32);

    impl Wake for PanicsOnce {
        fn wake(self: Arc<Self>) {
            assert!(
                self.0.fetch_add(1, Ordering::Relaxed) > 0,
                "planted: a waker panics"
            );
        }
    }

    fn three() -> ([Arc<PanicsOnce>; 3], [Waker; 3]) {
        let woken = [(); 3].map(|()| Arc::<PanicsOnce>::default());
        let wakers = woken.each_ref().map(|one| Waker::from(one.clone()));
        (woken, wakers)
    }

    fn counts(woken: &[Arc<PanicsOnce>]) -> Vec<u32> {
        let count = |one: &Arc<PanicsOnce>| one.0.load(Ordering::Relaxed);
        woken.iter().map(count).collect()
    }

    #[test]
    fn wakers_behind_one_that_panics_are_woken() {
        let (woken, registered) = three();
        let slot = WaitSlot::new();
        let _tickets = registered.each_ref().map(|waker| slot.register(waker));
        let mut wakers = Wakers::new();
        slot.take(&mut wakers);
        wakers.wake();
        assert!(wakers.is_empty());
        assert_eq!(counts(&woken), [1, 1, 1]);
    }

    #[test]
    fn a_slot_wakes_those_behind_one_that_panics() {
        let (woken, registered) = three();
        let slot = WaitSlot::new();
        let _tickets = registered.each_ref().map(|waker| slot.register(waker));
        assert!(slot.wake_one());
        slot.wake_all();
        assert_eq!(counts(&woken), [1, 1, 1]);
        assert!(!slot.is_waiting());
    }
}
