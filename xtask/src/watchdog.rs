//! The time after which a stage counts as hung. It does not test speed: machines differ, so the
//! limit lies far above the budget.

use std::time::{Duration, Instant};

/// The time of a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watchdog {
    started: Instant,
    limit: Option<Duration>,
}

impl Watchdog {
    /// Creates the watchdog of a stage that takes `budget` on a machine with two cores, alone.
    pub(crate) fn for_budget(budget: Duration) -> Self {
        Self::after(8 * budget + SLACK)
    }

    /// Creates a watchdog that runs out after `limit`.
    pub(crate) fn after(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit: Some(limit),
        }
    }

    /// Creates a watchdog that never runs out.
    pub(crate) fn patient() -> Self {
        Self {
            started: Instant::now(),
            limit: None,
        }
    }

    /// Returns the time since the stage began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns whether the stage has hung.
    pub(crate) fn has_run_out(&self) -> bool {
        self.limit.is_some_and(|limit| self.elapsed() > limit)
    }
}

/// Allows for a cold start: a download, a slow disk.
const SLACK: Duration = Duration::from_secs(300);
