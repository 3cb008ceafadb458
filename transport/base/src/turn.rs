//! Whether the calling thread runs a turn of an engine: for assertions that a turn does nothing that
//! takes long. A build without debug assertions knows of no turns.

#[cfg(debug_assertions)]
use std::{cell::Cell, thread};

#[cfg(debug_assertions)]
thread_local! {
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// A turn of the calling thread, until this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends with this value"]
pub struct RunningTurn(());

impl RunningTurn {
    /// Begins a turn. The thread is in no other one.
    #[inline]
    pub fn begin() -> Self {
        #[cfg(debug_assertions)]
        IS_RUNNING.set(true);
        Self(())
    }
}

impl Drop for RunningTurn {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        IS_RUNNING.set(false);
    }
}

/// Asserts, in a build with debug assertions, that the calling thread runs no turn, because `act`
/// takes long.
///
/// # Panics
/// If the thread runs a turn and is not panicking already.
#[inline]
#[track_caller]
pub fn assert_none(act: &str) {
    #[cfg(debug_assertions)]
    assert!(
        !IS_RUNNING.get() || thread::panicking(),
        "{act} takes long, so it belongs behind the turn"
    );
    let _ = act;
}
