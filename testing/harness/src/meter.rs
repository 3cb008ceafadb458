//! How far the measurements of this process are, for another thread that shows it.

#![forbid(unsafe_code)]

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU64, Ordering},
};

/// The count of one measurement. It has cache lines of its own, so that setting it is one store.
#[derive(Debug, Default)]
pub(crate) struct Meter(Arc<Count>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Meter {
    pub(crate) fn new() -> Self {
        let meter = Self::default();
        let mut meters = METERS.lock().unwrap_or_else(PoisonError::into_inner);
        meters.retain(|meter| meter.strong_count() > 0);
        meters.push(Arc::downgrade(&meter.0));
        meter
    }

    #[inline]
    pub(crate) fn set(&self, count: u64) {
        // METER: a number alone, which orders nothing.
        self.0.0.store(count, Ordering::Relaxed);
    }
}

/// Returns the messages that the measurements under way have timed so far, all together.
#[must_use]
pub fn timed() -> u64 {
    let meters = METERS.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = meters.iter().filter_map(Weak::upgrade);
    counts.map(|count| count.0.load(Ordering::Relaxed)).sum()
}

static METERS: Mutex<Vec<Weak<Count>>> = Mutex::new(Vec::new());
