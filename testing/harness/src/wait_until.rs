//! Waiting for what has no event.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Waits until the condition holds, and looks every millisecond.
///
/// # Panics
///
/// It did not hold within ten minutes, which is a watchdog's time: the place of the call is named.
#[track_caller]
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WATCHDOG, "what is awaited never came");
        thread::sleep(PAUSE);
    }
}

const WATCHDOG: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(1);
