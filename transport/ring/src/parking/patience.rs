//! The time that a call may wait, and the error when it is over.

use std::time::{Duration, Instant};

/// The time for which a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The call does not wait; where callers turn the engine, a call that finds nothing runs a
    /// turn and looks again.
    None,
    /// The call waits until this time; `None` means without limit.
    Until(Option<Instant>),
}

impl Patience {
    /// The call waits without limit.
    pub const FOREVER: Self = Patience::Until(None);

    /// Returns a limit that begins now.
    #[must_use]
    pub fn at_most(timeout: Duration) -> Self {
        Patience::Until(Instant::now().checked_add(timeout))
    }
}

/// The time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;
