//! The rate of wake-ups: changes for which a sleeping thread may have to be woken.

use std::time::{Duration, Instant};

/// Recent changes that threads left while no thread was awake for the engine.
#[derive(Debug, Default)]
pub(crate) struct BurstDetector {
    last: Option<Instant>,
    in_a_row: u32,
}

impl BurstDetector {
    /// Notes a change. Returns whether changes come so fast that a thread should stay awake for
    /// them.
    pub(crate) fn is_stream(&mut self, now: Instant) -> bool {
        let is_next = self
            .last
            .replace(now)
            .is_some_and(|last| now.saturating_duration_since(last) < STREAM_GAP);
        self.in_a_row = if is_next { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= STREAM_LENGTH
    }
}

/// Changes closer together than this are a stream: less than a sleep and a wake-up.
const STREAM_GAP: Duration = Duration::from_micros(10);
/// Number of changes in a stream from which waking a thread is worth its cost.
const STREAM_LENGTH: u32 = 4;
