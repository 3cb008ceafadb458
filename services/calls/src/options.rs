//! Options of one call.

use std::time::{Duration, Instant};

/// Options of a call, or of all calls of a [`Caller`](crate::Caller) or a
/// [`PeersCaller`](crate::PeersCaller); see [`Caller::with`](crate::Caller::with).
///
/// ```
/// use std::time::Duration;
/// use ibex::calls::CallOptions;
///
/// const LOOKUP: CallOptions = CallOptions::new()
///     .timeout(Duration::from_millis(50))
///     .idempotent(2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    timeout: Option<Duration>,
    pub(super) retries: u32,
    /// The items of a stream that may have been sent and not been taken.
    pub(super) window: u16,
    /// The call fails while its session has no connection.
    pub(super) fails_while_suspended: bool,
}

impl CallOptions {
    /// Makes the default options: no deadline, no retry, streams of which 16 items may be under
    /// way, and calls that wait while the session is suspended.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            timeout: None,
            retries: 0,
            window: 16,
            fails_while_suspended: false,
        }
    }

    /// Limits the time from the call to its reply, or to the end of its stream. When the time is up
    /// the call fails, and so has the handler's [`deadline`](crate::Request::deadline)
    /// passed. Default: no limit.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Declares that executing the call twice has the effect of once. The call is then sent again,
    /// up to this many times, if the handler dropped it without an answer or handed it back. A
    /// [`PeersCaller`](crate::PeersCaller) has a retry budget too, and sends it again also if the session or the service
    /// ended, or beside a slow attempt if its calls are
    /// [hedged](crate::PeersCaller::hedge_after_percentile). Default: 0, so that no call is
    /// sent twice. A stream is never started again.
    #[must_use]
    pub const fn idempotent(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Limits the items of a stream that may have been sent and not been taken. Default: 16.
    /// Minimum: 1. A higher limit lets the handler run further ahead, and this process hold more
    /// replies.
    #[must_use]
    pub const fn window(mut self, items: u16) -> Self {
        self.window = if items == 0 { 1 } else { items };
        self
    }

    /// Sets whether a call fails at once, as
    /// [not executed](crate::CallErrorKind::Suspended), if the session has no connection
    /// when the call begins. Default: false, so that the call waits until the session goes on or
    /// ends, or its time is up. Calls that went out before the connection broke wait in either
    /// case, because their answers come once the session goes on. Over shared memory calls need no
    /// connection, and do not fail.
    ///
    /// True suits a program that can ask another node at once.
    #[must_use]
    pub const fn fail_while_suspended(mut self, fails: bool) -> Self {
        self.fails_while_suspended = fails;
        self
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        // A time that the clock cannot express never comes.
        Instant::now().checked_add(self.timeout?)
    }

    /// Returns the options of one of several attempts at a call.
    pub(super) fn of_attempt(
        mut self,
        deadline: Option<Instant>,
        fails_while_suspended: bool,
    ) -> Self {
        self.retries = 0;
        self.timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        self.fail_while_suspended(self.fails_while_suspended || fails_while_suspended)
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::new()
    }
}
