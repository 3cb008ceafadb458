//! The attempts of a dialer: what begins and ends them, and what their outcomes mean for orders.
#![forbid(unsafe_code)]

use std::io;
use std::time::{Duration, Instant};

use ibex_base::Address;
use rustix::io::Errno;

use super::super::attempt::{AttemptProgress, ConnectionAttempt};
use super::super::connect::{LOCAL_PORT, NoConnection};
use super::super::dial::Missed;
use super::super::reserve::{self, Reserve};
use super::{Aim, DialOutcome, Dialer, Timed};
use crate::error::{HandshakeError, ResumeError};
use crate::party::Party;
use crate::resumption::ResumeTicket;

/// An attempt, and whom it is made for.
pub(super) struct RunningAttempt {
    pub(super) attempt: ConnectionAttempt,
    began: Instant,
    /// The order that the attempt is made for; `None` once it is over.
    pub(super) order: Option<u64>,
    pub(super) timer: Option<Instant>,
}

impl<T: Send + 'static> Dialer<T> {
    pub(super) fn start(
        &mut self,
        id: u64,
        address: Address,
        ticket: Option<ResumeTicket>,
        deadline: Instant,
        now: Instant,
    ) {
        let Some(order) = self.orders.get_mut(&id) else {
            return;
        };
        // A session that resumes takes the place of the connection that it has lost.
        if ticket.is_none()
            && let Err(limit) = Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS)
        {
            return self.lacks_descriptors(id, address, limit, now);
        }
        let key = self.next_key;
        self.next_key += 1;
        let local = order.local.clone();
        match ConnectionAttempt::begin(address, local, ticket, deadline, self.epoll.watch(key)) {
            Ok(attempt) => {
                order.attempts.push(key);
                let entry = RunningAttempt {
                    attempt,
                    began: now,
                    order: Some(id),
                    timer: None,
                };
                self.attempts.insert(key, entry);
                // A connection within this host is often made already.
                self.advance(key, now);
            }
            Err(why) => {
                if let NoConnection::Shortage(..) = why {
                    self.displace(now);
                }
                self.missed(id, address, Missed::Connection(why), now);
            }
        }
    }

    /// Notes that this process may open `limit` files, too few for another attempt. The files of
    /// attempts that are under way come back by themselves, and are waited for.
    fn lacks_descriptors(&mut self, id: u64, address: Address, limit: u32, now: Instant) {
        let missed = match self.attempts.is_empty() {
            true => Missed::Handshake(HandshakeError::Descriptors {
                end: Party::Dialer,
                limit,
            }),
            false => {
                self.displace(now);
                let action = "keep files free for the sessions that it has";
                Missed::Connection(NoConnection::Shortage(action, Errno::MFILE.into()))
            }
        };
        self.missed(id, address, missed, now);
    }

    /// Gives up the oldest attempt that has had time for an answer, to be made again.
    fn displace(&mut self, now: Instant) {
        let is_waiting = |entry: &RunningAttempt| {
            let waited = now.saturating_duration_since(entry.began);
            waited > PRESENT && entry.order.is_some() && !entry.attempt.has_answer()
        };
        let mut entries = self.attempts.iter();
        let Some((&key, _)) = entries.find(|(_, entry)| is_waiting(entry)) else {
            return;
        };
        let Some(entry) = self.remove_attempt(key) else {
            return;
        };
        let address = entry.attempt.address();
        let waited = now.saturating_duration_since(entry.began);
        entry.attempt.give_up(self.epoll.watch(key));
        if let Some(id) = entry.order {
            let why = format!(
                "no answer came within {waited:?}, and other attempts needed the descriptor"
            );
            let error = io::Error::new(io::ErrorKind::TimedOut, why);
            let missed = Missed::Connection(NoConnection::Peer(error));
            self.note_missed(id, key, address, missed, now);
        }
    }

    pub(super) fn advance(&mut self, key: u64, now: Instant) {
        let Some(entry) = self.attempts.get_mut(&key) else {
            return;
        };
        let watch = self.epoll.watch(key);
        match entry.attempt.advance(now, watch) {
            AttemptProgress::Waiting => {
                if let (device_jobs, Some(devices)) = entry.attempt.take_device_jobs() {
                    for job in device_jobs {
                        self.device_jobs.begin(key, devices, job);
                    }
                }
                self.set_attempt_timer(key);
            }
            AttemptProgress::Established(established) => {
                let order = self.remove_attempt(key).and_then(|entry| entry.order);
                match order {
                    Some(id) => self.end(id, DialOutcome::Dialed(Ok(established))),
                    None => self.unwanted.push_back(*established),
                }
            }
            AttemptProgress::Resumed(resumed) => {
                let order = self.remove_attempt(key).and_then(|entry| entry.order);
                if let Some(id) = order {
                    self.end(id, DialOutcome::Resumed(Ok(resumed)));
                }
            }
            AttemptProgress::Missed(missed) => {
                let (address, order) = (entry.attempt.address(), entry.order.take());
                match entry.attempt.begin_farewell(now, watch) {
                    true => self.set_attempt_timer(key),
                    false => {
                        if let Some(mut entry) = self.remove_attempt(key) {
                            entry.attempt.unwatch(self.epoll.watch(key));
                        }
                    }
                }
                if let Some(id) = order {
                    self.note_missed(id, key, address, missed, now);
                }
            }
            AttemptProgress::Gone => {
                if let Some(mut entry) = self.remove_attempt(key) {
                    entry.attempt.unwatch(self.epoll.watch(key));
                }
            }
        }
    }

    /// Notes that the attempt `key` of an order has failed.
    fn note_missed(&mut self, id: u64, key: u64, address: Address, missed: Missed, now: Instant) {
        if let Some(order) = self.orders.get_mut(&id) {
            order.attempts.retain(|other| *other != key);
        }
        self.missed(id, address, missed, now);
    }

    fn missed(&mut self, id: u64, address: Address, missed: Missed, now: Instant) {
        let missed = match missed {
            // No attempt of this dialer's gives one back, so waiting is of no use.
            Missed::Connection(NoConnection::Shortage(action, source))
                if action != LOCAL_PORT && self.attempts.is_empty() =>
            {
                Missed::Connection(NoConnection::Environment(action, source))
            }
            missed => missed,
        };
        match self.orders.get_mut(&id).map(|order| &mut order.aim) {
            Some(Aim::Session(dial)) => {
                dial.handle_missed(address, missed, now);
                // What is due next counts among the starts of a turn.
                self.set_order_timer(id, Some(now));
            }
            Some(Aim::Resumption {
                address, ticket, ..
            }) => {
                let error = not_resumed(*address, ticket, missed);
                self.end(id, DialOutcome::Resumed(Err(error)));
            }
            None => {}
        }
    }

    pub(super) fn remove_attempt(&mut self, key: u64) -> Option<RunningAttempt> {
        let entry = self.attempts.remove(&key)?;
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, Timed::Attempt(key)));
        }
        Some(entry)
    }
}

/// Says why a session has not resumed.
fn not_resumed(address: Address, ticket: &ResumeTicket, missed: Missed) -> ResumeError {
    let not_yet = |why, is_refused| ResumeError::NotYet {
        address,
        why,
        is_refused,
    };
    let source = match missed {
        Missed::Connection(NoConnection::Peer(error)) => {
            let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
            return not_yet(error.to_string(), is_refused);
        }
        Missed::Connection(
            NoConnection::Shortage(action, source) | NoConnection::Environment(action, source),
        ) => {
            return ResumeError::Environment {
                address,
                action,
                source,
            };
        }
        Missed::Handshake(error) => error,
    };
    match source {
        // The peer may be starting, crowded, stopped, or cut off once more.
        error if error.may_be_garbling() => not_yet(error.to_string(), false),
        HandshakeError::NotResumed { refusal } => ResumeError::Refused { address, refusal },
        HandshakeError::OtherNode {
            identity,
            incarnation,
        } if identity == ticket.peer && incarnation != ticket.incarnation => {
            ResumeError::Restarted {
                address,
                incarnation,
            }
        }
        HandshakeError::OtherNode { identity, .. } => ResumeError::OtherNode { address, identity },
        source => ResumeError::Handshake { address, source },
    }
}

/// The time within which a peer that is there has answered, as far as a shortage of descriptors is
/// concerned.
pub(super) const PRESENT: Duration = Duration::from_secs(1);
