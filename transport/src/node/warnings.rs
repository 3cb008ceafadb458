//! Warnings of a node that can come again and again, with a limit on how many reach the log.
#![forbid(unsafe_code)]

use std::{mem::Discriminant, sync::atomic::Ordering, time::Instant};

use ibex_base::{
    fork,
    log_limit::{self, LogLimit, UnloggedEvents},
    sync::{AtomicBool, Mutex, lock},
};

use crate::session::EndCause;

/// Limit on a node's warnings.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    limit: Mutex<LogLimit<Warning>>,
    /// True if warnings were counted and their count must still be logged.
    is_holding: AtomicBool,
}

/// A kind of warnings, which are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warning {
    /// A session did not end in order, for a cause of this kind.
    SessionEnded(Discriminant<EndCause>),
    /// A peer connected, and its session could not be set up.
    NotSetUp,
    /// A session has lost its connection, and has no other within a moment.
    Suspended,
    /// A sender waits for room.
    Stalled,
    /// A call waits for an end that the peer does not open.
    NotOpened,
    /// A group drops a member.
    MemberDropped,
    /// Segments that a peer passes have to wait for a descriptor.
    NoDescriptor,
    /// Two running nodes have one identity.
    OneIdentity,
    /// The epoll set refuses a session's socket.
    NoEpoll,
    /// A device refuses to register a region.
    RegionNotRegistered,
    /// The kernel refuses to move a region to memory that a peer maps.
    RegionNotShared,
}

impl Warnings {
    /// Returns whether to log this as a warning. If not, it was counted, and `tell` logs the
    /// count later.
    pub(crate) fn admits(
        &self,
        warning: Warning,
        tell: fn(&UnloggedEvents),
        example: impl FnOnce() -> String,
    ) -> bool {
        let now = Instant::now();
        self.tell_held(now);
        let mut limit = lock(&self.limit);
        let is_notified = limit.admits(warning, now, tell, example);
        if !is_notified {
            self.is_holding.store(true, Ordering::Relaxed);
        }
        is_notified
    }

    /// Returns whether counts wait to be logged by [`tell_held`](Self::tell_held).
    #[inline]
    pub(crate) fn are_held(&self) -> bool {
        self.is_holding.load(Ordering::Relaxed) || log_limit::process_holds()
    }

    /// Logs the counts whose periods are over, also those of the process.
    pub(crate) fn tell_held(&self, now: Instant) {
        log_limit::tell_held_of_process(now);
        if self.is_holding.load(Ordering::Relaxed) {
            let mut limit = lock(&self.limit);
            while let Some(held) = limit.poll_held(now) {
                held.warn();
            }
            let is_holding = limit.next_due().is_some();
            self.is_holding.store(is_holding, Ordering::Relaxed);
        }
    }

    /// Returns the time of the next count to log, if there is one.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let own = self.is_holding.load(Ordering::Relaxed);
        let own = own.then(|| lock(&self.limit).next_due()).flatten();
        [own, log_limit::next_due_of_process()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Logs the counts before the node goes.
impl Drop for Warnings {
    fn drop(&mut self) {
        // In a fork of the process, a thread that does not exist there may hold the log's lock.
        if fork::is_child() {
            return;
        }
        let now = Instant::now();
        while let Some(held) = lock(&self.limit).poll_last_held(now) {
            held.warn();
        }
    }
}

/// Logs a warning that a peer can cause. If there are too many of its kind, it is counted, and
/// logged as a debug message. All of these lines have the caller's module as their target.
macro_rules! warn_of {
    ($warnings:expr, $warning:expr, $example:expr, $($line:tt)+) => {{
        let tell: fn(&ibex_base::log_limit::UnloggedEvents) =
            |held| tracing::warn!(example = %held.example, count = held.count, "{held}");
        match $warnings.admits($warning, tell, || $example.to_string()) {
            true => tracing::warn!($($line)+),
            false => tracing::debug!($($line)+),
        }
    }};
}

pub(crate) use warn_of;
