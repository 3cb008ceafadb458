//! Wakers on their way from the places where somebody waits to who calls them.
//!
//! They are collected under a lock and called after it. The list is its thread's, used
//! again and again, so that waking allocates nothing; and it is fetched with the first
//! waker, so that who wakes nobody pays for nothing.
#![forbid(unsafe_code)]

use std::{
    cell::Cell,
    mem::{self, ManuallyDrop},
    task::Waker,
};

/// Wakers to be called. Those that are not are dropped with it.
#[derive(Debug, Default)]
pub struct Wakers(ManuallyDrop<Vec<Waker>>);

thread_local! {
    static KEPT: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

impl Wakers {
    /// Nobody to wake.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(ManuallyDrop::new(Vec::new()))
    }

    /// Whether there is nobody to wake.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there never was anybody: then there is nothing to drop either.
    #[inline]
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.0.capacity() == 0
    }

    /// Gets the calling thread a list, so that it meets the allocator before it waits and not
    /// when it first wakes somebody.
    pub fn prepare() {
        let _ = KEPT.try_with(|kept| {
            let mut list = kept.take();
            list.reserve(1);
            kept.set(list);
        });
    }

    /// Takes over all of `wakers`.
    pub(super) fn extend(&mut self, wakers: impl Iterator<Item = Waker>) {
        if self.is_untouched() {
            // While the thread's locals are destroyed there is none.
            self.0 = ManuallyDrop::new(KEPT.try_with(Cell::take).unwrap_or_default());
        }
        self.0.extend(wakers);
    }

    /// Calls all of them; for who holds no lock.
    pub fn wake(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
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
    // Empty but for a panic.
    list.clear();
    let _ = KEPT.try_with(|kept| kept.set(list));
}
