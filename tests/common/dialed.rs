//! Dialing without a node: one order to a dialer, which the calling thread turns.

use std::time::{Duration, Instant};

use ibex_bootstrap::{DialError, DialOutcome, DialRequest, Dialer, Established, Local};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Connects to the node that listens at `address`, in as many attempts as fit into `timeout`.
pub(crate) fn dial(
    address: &str,
    local: &Local,
    timeout: Duration,
) -> Result<Established, DialError> {
    let mut dialer = Dialer::new(local).expect("a dialer");
    let request = DialRequest {
        address: address.to_owned(),
        local: local.clone(),
        timeout,
        tries_again: true,
    };
    let _order = dialer.desk().dial((), request);
    loop {
        if let Some(((), DialOutcome::Dialed(outcome))) = dialer.poll_outcome() {
            return outcome.map(|established| *established);
        }
        let due = dialer.next_deadline();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec::try_from(left).expect("it is short"));
        let mut descriptors = [PollFd::from_borrowed_fd(dialer.as_fd(), PollFlags::IN)];
        // A signal ends the sleep early, and then the turn finds nothing to do.
        let _ = poll(&mut descriptors, left.as_ref());
        dialer.turn(Instant::now());
    }
}
