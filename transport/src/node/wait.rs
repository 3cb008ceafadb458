//! The ways in which a blocking call waits: what each gives away, and what that costs.

use std::time::Duration;

/// How a blocking call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never sleeps: the lowest latency, and one core per waiting thread.
    BusyPoll,
    /// Spins for so long, giving the core away in between, then sleeps. Sleeps at once for a
    /// while, up to half a second, after another thread has kept the core for a millisecond.
    Adaptive {
        /// How long, not counting what time other threads take on the core. Default: 50 µs,
        /// about what a sleep and a wake-up cost together; zero where a spinning thread
        /// would keep the core from the thread that it waits for.
        spin: Duration,
    },
    /// Sleeps at once.
    Event,
}
