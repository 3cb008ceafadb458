//! A counter that one thread writes at a time and any thread reads.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use ibex_base::sync::AtomicU64;

/// A number that one thread at a time adds to, without a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        let sum = self.get() + more;
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Sets the counter to a sum that only grows. Returns whether the sum has grown.
    pub(crate) fn raise(&self, sum: u64) -> bool {
        let has_grown = sum > self.get();
        if has_grown {
            self.0.store(sum, Ordering::Relaxed);
        }
        has_grown
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
