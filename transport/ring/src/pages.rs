//! A list whose memory costs nothing until it is used, and can be given back in between.

use std::ops::Deref;

#[cfg(not(loom))]
use crate::memory::{Mapping, MemoryUse};
use ibex_base::sync::{AtomicU32, UnsafeCell};

/// The kernel gives no memory.
#[cfg(not(loom))]
pub(super) use crate::memory::MemoryError as NoMemory;
/// Never happens under loom.
#[cfg(loom)]
pub(super) use std::convert::Infallible as NoMemory;

/// A list of values in pages of its own, all in their initial state.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Pages<T> {
    memory: Mapping,
    count: usize,
    values: std::marker::PhantomData<T>,
}

/// loom's values carry the model's bookkeeping and have to be made one by one.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Pages<T>(Vec<T>);

/// A type that is in its initial state in fresh pages.
///
/// # Safety
///
/// Zero bits are the initial value of the type, or any bits do. Values need no drop, and a page is
/// aligned enough for them.
pub(super) unsafe trait Initial {
    /// Returns a value, as loom needs it.
    #[cfg(loom)]
    fn initial() -> Self;
    /// Puts the value into its initial state, as loom sees it.
    #[cfg(loom)]
    fn reset(&self);
}

// SAFETY: zero is the initial value of the atomics that are kept in these lists.
unsafe impl Initial for AtomicU32 {
    #[cfg(loom)]
    fn initial() -> Self {
        Self::new(0)
    }
    #[cfg(loom)]
    fn reset(&self) {
        self.store(0, ibex_base::sync::Ordering::Relaxed);
    }
}

// SAFETY: a `MaybeUninit` may be without a value, so any bits will do, and it drops nothing.
unsafe impl<T> Initial for UnsafeCell<std::mem::MaybeUninit<T>> {
    #[cfg(loom)]
    fn initial() -> Self {
        Self::new(std::mem::MaybeUninit::uninit())
    }
    #[cfg(loom)]
    fn reset(&self) {
        // loom fails if another thread accesses the value.
        self.with_mut(|value| {
            // SAFETY: the caller of `discard` promises that no other thread does.
            unsafe { *value = std::mem::MaybeUninit::uninit() };
        });
    }
}

#[cfg(not(loom))]
impl<T: Initial> Pages<T> {
    /// Maps pages for this many values.
    pub(super) fn new(count: usize) -> Result<Self, NoMemory> {
        let layout = std::alloc::Layout::array::<T>(count);
        let bytes = layout.expect("a window fits the address space").size();
        let memory = Mapping::inherited(MemoryUse::Window, bytes)?;
        // With huge pages the first value could cost 2 MiB.
        memory.prefer_huge_pages(false);
        Ok(Self {
            memory,
            count,
            values: std::marker::PhantomData,
        })
    }

    /// Puts all values into their initial state, and gives their memory back until they are
    /// used.
    ///
    /// # Safety
    ///
    /// No thread writes a value during the call, and a reader may find it in either state.
    pub(super) unsafe fn discard(&self) {
        // SAFETY: the caller promises what `Mapping::discard` requires.
        unsafe { self.memory.discard() };
    }
}

#[cfg(not(loom))]
impl<T: Initial> Deref for Pages<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is as long as `count` values, aligned to a page, and lives as long as
        // `self`; its bits are values of `T` from the start (`Initial`).
        unsafe { std::slice::from_raw_parts(self.memory.base().cast().as_ptr(), self.count) }
    }
}

#[cfg(loom)]
impl<T: Initial> Pages<T> {
    pub(super) fn new(count: usize) -> Result<Self, NoMemory> {
        Ok(Self((0..count).map(|_| T::initial()).collect()))
    }

    /// # Safety
    ///
    /// The conditions outside of loom. loom checks here that no thread accesses the values.
    pub(super) unsafe fn discard(&self) {
        self.0.iter().for_each(T::reset);
    }
}

#[cfg(loom)]
impl<T> Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
