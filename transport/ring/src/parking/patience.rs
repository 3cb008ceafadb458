//! The time that a call may wait, and the error when it is over.

use std::time::{Duration, Instant};

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all; where callers turn the engine, a call that finds nothing runs a turn and
    /// looks again.
    None,
    /// Not at all, and without a turn: for a second look.
    Glance,
    /// Until then, or for ever.
    Until(Option<Instant>),
}

impl Patience {
    /// As long as it takes.
    pub const FOREVER: Self = Patience::Until(None);

    /// For so long from now.
    #[must_use]
    pub fn at_most(timeout: Duration) -> Self {
        Patience::Until(Instant::now().checked_add(timeout))
    }
}

/// The time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;
