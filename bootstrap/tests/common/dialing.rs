//! A dialer that the test turns.

use std::time::{Duration, Instant};

use ibex_bootstrap::{
    DialDesk, DialError, DialOutcome, DialRequest, Dialer, Dialing, Established, Local,
    ResumeError, ResumeRequest, ResumeTicket, ResumedConnection,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::LONG;

/// A dialer whose orders have numbers.
pub(crate) struct Turned {
    pub(crate) dialer: Dialer<u32>,
    pub(crate) desk: DialDesk<u32>,
    local: Local,
}

impl Turned {
    pub(crate) fn new(local: Local) -> Turned {
        let dialer = Dialer::new(&local).unwrap();
        let desk = dialer.desk();
        Turned {
            dialer,
            desk,
            local,
        }
    }

    /// Orders a session, for which the dialer tries again and again.
    pub(crate) fn dial(&self, number: u32, address: impl ToString) -> Dialing<u32> {
        self.request(number, address, LONG, true)
    }

    pub(crate) fn request(
        &self,
        number: u32,
        address: impl ToString,
        timeout: Duration,
        tries_again: bool,
    ) -> Dialing<u32> {
        let request = DialRequest {
            address: address.to_string(),
            local: self.local.clone(),
            timeout,
            tries_again,
        };
        self.desk.dial(number, request).expect("the dialer is open")
    }

    pub(crate) fn resume(&self, number: u32, address: &str, ticket: &ResumeTicket) -> Dialing<u32> {
        let request = ResumeRequest {
            address: address.parse().unwrap(),
            local: self.local.clone(),
            ticket: ticket.clone(),
            timeout: LONG,
        };
        let order = self.desk.resume(number, request);
        order.expect("the dialer is open")
    }

    /// Turns the dialer once it has something to do.
    pub(crate) fn turn(&mut self) {
        let left = self.dialer.next_deadline().map_or(LONG, |due| {
            due.saturating_duration_since(Instant::now()).min(LONG)
        });
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(self.dialer.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).unwrap();
        self.dialer.turn(Instant::now());
    }

    /// Turns until there is an outcome.
    pub(crate) fn outcome(&mut self) -> (u32, DialOutcome) {
        loop {
            if let Some(outcome) = self.dialer.poll_outcome() {
                return outcome;
            }
            self.turn();
        }
    }

    /// Turns until there is a session.
    pub(crate) fn established(&mut self) -> (u32, Established) {
        match self.outcome() {
            (number, DialOutcome::Dialed(Ok(established))) => (number, *established),
            other => panic!("{other:?}"),
        }
    }

    /// Turns until an attempt to resume has ended.
    pub(crate) fn resumed(&mut self) -> (u32, Result<Box<ResumedConnection>, ResumeError>) {
        match self.outcome() {
            (number, DialOutcome::Resumed(outcome)) => (number, outcome),
            other => panic!("{other:?}"),
        }
    }
}

/// Connects to the node that listens at `address`. Blocks, for `timeout` at most.
pub(crate) fn dial(
    address: &str,
    local: &Local,
    timeout: Duration,
) -> Result<Established, DialError> {
    let mut turned = Turned::new(local.clone());
    let _order = turned.request(0, address, timeout, true);
    match turned.outcome() {
        (_, DialOutcome::Dialed(outcome)) => outcome.map(|established| *established),
        other => panic!("{other:?}"),
    }
}

/// Resumes the session of `ticket` with the node that listens at `address`, in one attempt.
pub(crate) fn resume(
    address: impl ToString,
    local: &Local,
    ticket: &ResumeTicket,
) -> Result<ResumedConnection, ResumeError> {
    let mut turned = Turned::new(local.clone());
    let _order = turned.resume(0, &address.to_string(), ticket);
    turned.resumed().1.map(|resumed| *resumed)
}
