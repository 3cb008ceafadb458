//! A value that any thread with news looks after, so that wakers never wait for a lock.
//!
//! ```text
//!   thread with news          holder of the value
//!   is_told = true            leave: unlock
//!   (fence)                   (fence)
//!   try to lock               is_told?
//!     locked by another: go     yes: look after it again
//! ```
//!
//! The fences order both sides' writes before their reads. So either the lock is found free, or its
//! holder finds the news.

#![forbid(unsafe_code)]

use std::sync::{
    Mutex, MutexGuard, TryLockError,
    atomic::{AtomicBool, Ordering, fence},
};

use ibex_base::sync::lock;

/// See the module.
#[derive(Debug)]
pub(super) struct Attended<T> {
    is_told: AtomicBool,
    value: Mutex<T>,
}

impl<T> Attended<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            is_told: AtomicBool::new(false),
            value: Mutex::new(value),
        }
    }

    /// Runs `act` on the value. If another holder has the value, that holder runs `act` when it
    /// leaves.
    pub(super) fn attend(&self, mut act: impl FnMut(&mut T)) {
        // TOLD, pairs with the swap below: the thread that takes the flag sees what the news are
        // about.
        self.is_told.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        while let Some(mut value) = self.try_hold() {
            self.is_told.swap(false, Ordering::AcqRel);
            act(&mut value);
            if !self.unlock(value) {
                break;
            }
        }
    }

    /// Returns the value, if it has no holder. Give it back by [`leave`](Self::leave).
    pub(super) fn try_hold(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until the value has no holder, and returns it. Must not be called inside a waker.
    pub(super) fn hold(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// Gives the value back, and runs `act` on it if there were news meanwhile.
    pub(super) fn leave(&self, value: MutexGuard<'_, T>, act: impl FnMut(&mut T)) {
        if self.unlock(value) {
            self.attend(act);
        }
    }

    /// Returns whether there were news meanwhile.
    fn unlock(&self, value: MutexGuard<'_, T>) -> bool {
        drop(value);
        fence(Ordering::SeqCst);
        self.is_told.load(Ordering::Relaxed)
    }
}
