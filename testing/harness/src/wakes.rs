//! Wakers that are counted.
#![forbid(unsafe_code)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

/// Counts the wake-ups of its waker.
#[derive(Debug, Default)]
pub struct Wakes(AtomicU32);

impl Wakes {
    /// Returns a counter and its waker.
    #[must_use]
    pub fn counted() -> (Arc<Self>, Waker) {
        let wakes = Arc::<Self>::default();
        (wakes.clone(), wakes.into())
    }

    /// Returns the number of wake-ups.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until there were more than `before`.
    ///
    /// # Panics
    ///
    /// There is none within minutes.
    pub fn wait_beyond(&self, before: u32) {
        let begun = Instant::now();
        while self.get() == before {
            assert!(begun.elapsed() < WATCHDOG, "nobody wakes it");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Nothing takes so long on any machine.
const WATCHDOG: Duration = Duration::from_secs(300);
