//! The ways in which a blocking call waits, and the cost of each.

use std::time::Duration;

/// The way in which blocking calls wait: by spinning, by sleeping, or by spinning first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never sleeps. This has the lowest latency, and takes one core per waiting thread.
    BusyPoll,
    /// Spins for a limited time, giving the core away in between, and then sleeps. After another
    /// thread has kept the core for a millisecond, calls sleep at once for up to half a second.
    Adaptive {
        /// The time to spin, without the time that other threads take on the core. Default: 50 µs,
        /// about the price of a sleep and a wake-up; 0 where a spinning thread would keep the core
        /// from the thread that it waits for.
        spin: Duration,
    },
    /// Sleeps at once.
    Event,
}

impl Wait {
    /// Returns the time to spin before a sleep.
    pub(crate) fn spin(self) -> Duration {
        match self {
            Self::BusyPoll => Duration::MAX,
            Self::Adaptive { spin } => spin,
            Self::Event => Duration::ZERO,
        }
    }
}
