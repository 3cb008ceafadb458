//! Dialing for a program without an engine: one order, and the calling thread turns its dialer.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use ibex_base::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::dial_desk::{DialRequest, ResumeRequest};
use super::dialer::{DialOutcome, Dialer};
use crate::error::{DialError, ResumeError};
use crate::established::{Established, ResumedConnection};
use crate::local::Local;
use crate::resumption::ResumeTicket;

/// Connects to the node that listens at `address` (`host:port`) and shakes hands with it. Blocks,
/// for `timeout` at most.
///
/// All addresses of a host name are tried, and tried again with growing pauses, until one of them
/// gives a session. So a peer that starts later is found when it does. These answers are treated as
/// follows:
///
/// - Another protocol, another protocol version, or policies that exclude each other are errors at
///   once.
/// - A peer that closes the connection may be starting, ending or crowded, and is tried again. So
///   is a peer that says it is being closed, and one whose bytes changed on their way.
/// - A peer that accepts and falls silent (for `handshake_timeout`) is tried once more.
///
/// The peer's acceptor has to be turned by another thread. A node with other work has a [`Dialer`].
///
/// # Errors
/// The finding that was met instead of the session.
pub fn dial(address: &str, local: &Local, timeout: Duration) -> Result<Established, DialError> {
    let failed = |source| DialError::Environment {
        address: address.to_owned(),
        action: "make a dialer",
        source,
    };
    let mut dialer = Dialer::new(local).map_err(failed)?;
    let request = DialRequest {
        address: address.to_owned(),
        local: local.clone(),
        timeout,
        tries_again: true,
    };
    let _dialing = dialer.desk().dial((), request);
    loop {
        match next(&mut dialer) {
            DialOutcome::Dialed(outcome) => return outcome.map(|established| *established),
            DialOutcome::Resumed(_) => {}
        }
    }
}

/// Connects to the node that listens at `address`, which has the other end of the session of
/// `ticket`, and agrees with it that the session resumes over that connection. Blocks for up to
/// `timeout`; the handshake takes no longer than `handshake_timeout` of it.
///
/// The call is one attempt; see [`DialDesk::resume`](crate::DialDesk::resume).
///
/// # Errors
/// The finding that was met instead of the session.
pub fn resume(
    address: Address,
    local: &Local,
    ticket: &ResumeTicket,
    timeout: Duration,
) -> Result<ResumedConnection, ResumeError> {
    let failed = |source| ResumeError::Environment {
        address,
        action: "make a dialer",
        source,
    };
    let mut dialer = Dialer::new(local).map_err(failed)?;
    let request = ResumeRequest {
        address,
        local: local.clone(),
        ticket: ticket.clone(),
        timeout,
    };
    let _dialing = dialer.desk().resume((), request);
    loop {
        match next(&mut dialer) {
            DialOutcome::Resumed(outcome) => return outcome.map(|resumed| *resumed),
            DialOutcome::Dialed(_) => {}
        }
    }
}

/// Turns the dialer until there is an outcome.
fn next(dialer: &mut Dialer<()>) -> DialOutcome {
    loop {
        if let Some(((), outcome)) = dialer.poll_outcome() {
            return outcome;
        }
        let now = Instant::now();
        let due = dialer.next_deadline();
        let timeout = due.map(|due| {
            let left = due.saturating_duration_since(now).min(LONGEST_SLEEP);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut descriptors = [PollFd::from_borrowed_fd(dialer.as_fd(), PollFlags::IN)];
        // A signal ends the sleep early, and then the turn finds nothing to do.
        let _ = poll(&mut descriptors, timeout.as_ref());
        dialer.turn(Instant::now());
    }
}

/// The longest sleep; a longer wait wakes up in vain once in a while.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
