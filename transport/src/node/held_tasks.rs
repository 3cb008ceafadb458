//! Blocking calls that hold up the tasks of the runtime that drives the node.
#![forbid(unsafe_code)]

use std::{
    sync::{OnceLock, atomic::Ordering},
    time::Duration,
};

use ibex_base::sync::AtomicBool;

/// The question whether a thread that is about to sleep holds up the tasks of a runtime.
#[derive(Debug, Default)]
pub(crate) struct HeldTasks {
    /// Asks it of the calling thread. Set where all tasks of the node's runtime share one thread.
    ask: OnceLock<fn() -> bool>,
    is_notified: AtomicBool,
}

impl HeldTasks {
    /// Sets the question. The first one stays.
    pub(super) fn ask_by(&self, ask: fn() -> bool) {
        let _ = self.ask.set(ask);
    }

    /// Returns whether the calling thread would hold up tasks by its sleep, and that was not
    /// reported yet.
    pub(crate) fn are_held_up(&self) -> bool {
        let is_notified = self.is_notified.load(Ordering::Relaxed);
        !is_notified && self.ask.get().is_some_and(|ask| ask())
    }

    /// Warns, once, of a call that has held up tasks for this long.
    #[cold]
    pub(crate) fn warn(&self, waited: Duration) {
        if !self.is_notified.swap(true, Ordering::Relaxed) {
            ibex_base::warn_limited!(
                "a blocking call waits",
                ?waited,
                "a blocking call waits in a task of a current-thread runtime: until it returns, no \
                 task of that runtime runs, and it never returns if it waits for one of them; \
                 await the call's `_async` form, or make the call on another thread, such as that \
                 of spawn_blocking (this is logged once)"
            );
        }
    }
}
