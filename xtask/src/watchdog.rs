//! How long a stage may take before it counts as hung. This is no test of
//! speed: machines differ, so the limit lies far above the budget.

use std::time::{Duration, Instant};

/// One stage's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watchdog {
    started: Instant,
    limit: Option<Duration>,
}

impl Watchdog {
    /// For a stage that takes `budget` on a machine with two cores.
    pub(crate) fn for_budget(budget: Duration) -> Self {
        Self::after(4 * budget + SLACK)
    }

    /// For what has hung after `limit`.
    pub(crate) fn after(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit: Some(limit),
        }
    }

    /// For what may take as long as it likes.
    pub(crate) fn patient() -> Self {
        Self {
            started: Instant::now(),
            limit: None,
        }
    }

    /// Time since the stage began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the stage has hung.
    pub(crate) fn has_run_out(&self) -> bool {
        self.limit.is_some_and(|limit| self.elapsed() > limit)
    }
}

/// For a cold start of anything: a download, a slow disk.
const SLACK: Duration = Duration::from_secs(300);
