//! The sockets under the handshake: the only part of this crate that talks to
//! the system, reads its clock or draws randomness, and calls
//! [`VerbsDevices`](crate::VerbsDevices).

mod acceptor;
mod address;
mod attempt;
mod connect;
mod device_jobs;
mod dial;
mod dial_desk;
mod dial_target;
mod dialer;
mod epoll_set;
mod event_fd;
mod host;
mod pending;
mod reserve;
mod resolver;
mod socket_name;
mod tcp;
mod unix;
mod unix_meeting;

use std::time::{Duration, Instant};

pub use acceptor::Acceptor;
pub use address::resolve;
pub use dial_desk::{DialDesk, DialRequest, Dialing, ResumeRequest};
pub use dialer::{DialOutcome, Dialer};
pub use tcp::own_address;
pub use unix::user_of_peer;

/// Returns the time `duration` after `now`, at most a century, since the clock cannot express every
/// time.
fn after(now: Instant, duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    now + duration.min(CENTURY)
}
