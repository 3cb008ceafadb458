//! The attempts of a dialer: what begins and ends them, and what their outcomes mean for orders.
#![forbid(unsafe_code)]

use std::io;
use std::time::{Duration, Instant};

use ibex_base::Address;
use rustix::io::Errno;

use super::super::attempt::{AttemptStage, DialAttempt};
use super::super::connect::{LOCAL_PORT, NoConnection};
use super::super::dial::Missed;
use super::super::pending::{HandshakeProgress, PendingHandshake};
use super::super::reserve::{self, Reserve};
use super::{Aim, DialOutcome, Dialer, Timed};
use crate::error::{HandshakeError, ResumeError};
use crate::party::Party;
use crate::resumption::ResumeTicket;

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
        let wanted = (id, address, local);
        match DialAttempt::begin(wanted, ticket, (now, deadline), self.epoll.watch(key)) {
            Ok(attempt) => {
                order.attempts.push(key);
                self.attempts.insert(key, attempt);
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
        let is_waiting = |attempt: &DialAttempt| {
            let waited = now.saturating_duration_since(attempt.began);
            waited > PRESENT && attempt.order.is_some() && !attempt.has_answer()
        };
        let mut attempts = self.attempts.iter();
        let Some((&key, _)) = attempts.find(|(_, attempt)| is_waiting(attempt)) else {
            return;
        };
        let Some(attempt) = self.remove_attempt(key) else {
            return;
        };
        let (address, order) = (attempt.address, attempt.order);
        let waited = now.saturating_duration_since(attempt.began);
        attempt.give_up(self.epoll.watch(key));
        if let Some(id) = order {
            let why = format!(
                "no answer came within {waited:?}, and other attempts needed the descriptor"
            );
            let error = io::Error::new(io::ErrorKind::TimedOut, why);
            let missed = Missed::Connection(NoConnection::Peer(error));
            self.note_missed(id, key, address, missed, now);
        }
    }

    pub(super) fn advance(&mut self, key: u64, now: Instant) {
        let Some(attempt) = self.attempts.get_mut(&key) else {
            return;
        };
        let watch = self.epoll.watch(key);
        match attempt.advance(now, watch) {
            Ok(HandshakeProgress::Waiting) => {
                let wanted = attempt.handshake().map(PendingHandshake::take_device_jobs);
                if let (Some(wanted), Some(devices)) = (wanted, attempt.local.usable_devices()) {
                    for job in wanted {
                        self.device_jobs.begin(key, devices, job);
                    }
                }
                self.set_attempt_timer(key);
            }
            Ok(HandshakeProgress::Agreed(agreement)) => {
                if let Some((talk, order)) = self.take_handshake(key) {
                    let established = talk.finish(*agreement, self.epoll.watch(key));
                    match order {
                        Some(id) => self.end(id, DialOutcome::Dialed(Ok(Box::new(established)))),
                        None => self.unwanted.push_back(established),
                    }
                }
            }
            Ok(HandshakeProgress::Resumed(session)) => {
                if let Some((talk, order)) = self.take_handshake(key) {
                    let resumed = talk.resume(session, self.epoll.watch(key));
                    if let Some(id) = order {
                        self.end(id, DialOutcome::Resumed(Ok(Box::new(resumed))));
                    }
                }
            }
            Ok(HandshakeProgress::Failed(_) | HandshakeProgress::Gone) => self.unwatch(key),
            Err(missed) => {
                let (address, order) = (attempt.address, attempt.order.take());
                let talk = attempt.handshake();
                match talk.is_some_and(|talk| talk.begin_farewell(now, watch)) {
                    true => self.set_attempt_timer(key),
                    false => self.unwatch(key),
                }
                if let Some(id) = order {
                    self.note_missed(id, key, address, missed, now);
                }
            }
        }
    }

    fn unwatch(&mut self, key: u64) {
        if let Some(mut attempt) = self.remove_attempt(key) {
            attempt.unwatch(self.epoll.watch(key));
        }
    }

    /// Takes a handshake that has succeeded, with its order.
    fn take_handshake(&mut self, key: u64) -> Option<(Box<PendingHandshake>, Option<u64>)> {
        let attempt = self.remove_attempt(key)?;
        match attempt.stage {
            AttemptStage::Talking(talk) => Some((talk, attempt.order)),
            _ => None,
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

    pub(super) fn remove_attempt(&mut self, key: u64) -> Option<DialAttempt> {
        let attempt = self.attempts.remove(&key)?;
        if let Some(at) = attempt.timer {
            self.timers.remove(&(at, Timed::DialAttempt(key)));
        }
        Some(attempt)
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
