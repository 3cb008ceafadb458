//! The sockets under the handshake: the only part of this crate that talks to
//! the system, reads its clock or draws randomness, and calls
//! [`VerbsDevices`](crate::VerbsDevices).

mod acceptor;
mod back_off;
mod connect;
mod dial;
mod errands;
mod host;
mod line;
mod own_pair;
mod patience;
mod pending;
mod resume;
mod tcp;
mod unix;

use std::time::{Duration, Instant};

pub use acceptor::Acceptor;
pub use dial::{dial, dial_once};
pub use patience::Meanwhile;
pub use resume::resume;

/// Returns the time `duration` after `now`, at most a century, since the clock cannot express every
/// time.
fn after(now: Instant, duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    now + duration.min(CENTURY)
}
