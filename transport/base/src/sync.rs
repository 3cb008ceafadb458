//! The one place that chooses between std's primitives and loom's.
//!
//! Ring algorithms import atomics, cells and locks from here and nowhere else;
//! built with `--cfg loom` they run inside loom's model checker, otherwise each
//! name is std's own and costs nothing.
//!
//! A model is worth what it can find, so each one has mutants (`testing/mutants`): one
//! ordering, fence or step is left out, and the model has to fail.

use std::sync::PoisonError;

mod armed_queue;
mod barrier;
mod biased_lock;
mod lent_limit;
mod placement;

pub use armed_queue::{ArmableQueue, ArmedQueue, Slept};
pub use barrier::Asymmetry;
pub use biased_lock::BiasedLock;
pub use lent_limit::LentLimit;
#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};
pub use placement::Placement;
#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};

/// Locks a mutex. A panic of a thread that held the lock does not matter, because the guarded value
/// is whole after each step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `std::cell::UnsafeCell` with the interface of loom's: the value is reached
/// inside `with` and `with_mut`, where loom checks for conflicting accesses.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Wraps `value`.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for reading.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer for reading and writing.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
