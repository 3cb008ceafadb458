//! The dials of a node, and its attempts to resume sessions: the twin of the acceptor.
//!
//! Rules:
//!
//! 1. Nothing here waits. Every attempt has a deadline, and an attempt that waits for its peer takes
//!    no other attempt's place.
//! 2. A turn starts and advances a bounded number of attempts. The bound is low while handshakes are
//!    inside TLS, which computes.
//! 3. Each order has one outcome, with which its owner comes back. A dial that is cancelled has it
//!    at once.
//! 4. A connection of which the peer may have made a session is not closed without a word. Where
//!    nobody wants it any more, the peer's answer is awaited, and the session handed out as unwanted.
//! 5. For want of a descriptor, an attempt displaces one that has waited for its peer for longer
//!    than [`PRESENT`](attempts::PRESENT); that one is made again later. So peers that do not answer hold no descriptor
//!    back from one that does.
#![forbid(unsafe_code)]

mod attempts;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ibex_base::Address;
use rustix::event::epoll::EventFlags;

use super::address;
use super::after;
use super::attempt::DialAttempt;
use super::device_jobs::DeviceJobs;
use super::dial::{Action, Dial};
use super::dial_desk::{DialDesk, DialRequest, Named, Order, ResumeRequest};
use super::epoll_set::EpollSet;
use super::event_fd::EventFd;
use super::resolver::{LookUp, Resolver};
use crate::error::{DialError, ResumeError};
use crate::established::{Established, ResumedConnection};
use crate::local::Local;
use crate::resumption::ResumeTicket;

/// All connections that a node is making.
///
/// Orders come from any thread, by [`desk`](Self::desk). Call [`turn`](Self::turn) when
/// [`as_fd`](Self::as_fd) is readable and when [`next_deadline`](Self::next_deadline) has come;
/// afterwards drain [`poll_outcome`](Self::poll_outcome) and [`poll_unwanted`](Self::poll_unwanted)
/// to `None`.
pub struct Dialer<T> {
    desk: DialDesk<T>,
    /// Rung for orders, for the resolver's answers and for results of device jobs.
    bell: Arc<EventFd>,
    /// Holds the bell under [`BELL`], and each attempt's sockets under its key.
    epoll: EpollSet,
    resolver: Resolver,
    device_jobs: DeviceJobs,
    is_authenticated: bool,

    // The orders, by number.
    orders: HashMap<u64, Ordered<T>>,

    // The attempts.
    /// The attempts by key; keys grow, so the first is the oldest.
    attempts: BTreeMap<u64, DialAttempt>,
    next_key: u64,
    timers: BTreeSet<(Instant, Timed)>,

    // The results.
    outcomes: VecDeque<(T, DialOutcome)>,
    unwanted: VecDeque<Established>,
}

/// The outcome of an order.
#[derive(Debug)]
pub enum DialOutcome {
    /// The session, or the reason why there is none.
    Dialed(Result<Box<Established>, DialError>),
    /// The session's next connection, or the reason why there is none.
    Resumed(Result<Box<ResumedConnection>, ResumeError>),
}

struct Ordered<T> {
    named: Named<T>,
    local: Arc<Local>,
    aim: Aim,
    attempts: Vec<u64>,
    timer: Option<Instant>,
}

enum Aim {
    Session(Dial),
    Resumption {
        address: Address,
        ticket: Box<ResumeTicket>,
        deadline: Instant,
    },
}

/// A thing with a deadline. At the same time attempts come first, so that an order that ends knows
/// their findings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timed {
    DialAttempt(u64),
    Order(u64),
}

impl<T: Send + 'static> Dialer<T> {
    /// Makes a dialer for a node.
    ///
    /// # Errors
    /// This process lacks two descriptors.
    pub fn new(local: &Local) -> io::Result<Dialer<T>> {
        Self::with_resolver(local, address::resolve)
    }

    pub(super) fn with_resolver(local: &Local, look_up: LookUp) -> io::Result<Dialer<T>> {
        let (epoll, bell) = (EpollSet::new()?, Arc::new(EventFd::new()?));
        epoll.watch(BELL).add(&*bell, EventFlags::IN)?;
        Ok(Dialer {
            desk: DialDesk::new(bell.clone()),
            resolver: Resolver::new(look_up, bell.clone()),
            device_jobs: DeviceJobs::ringing(local, bell.clone()),
            is_authenticated: local.credentials.is_some(),
            bell,
            epoll,
            orders: HashMap::new(),
            attempts: BTreeMap::new(),
            next_key: BELL + 1,
            timers: BTreeSet::new(),
            outcomes: VecDeque::new(),
            unwanted: VecDeque::new(),
        })
    }

    /// Returns the desk at which orders are left.
    pub fn desk(&self) -> DialDesk<T> {
        self.desk.clone()
    }

    /// Returns a descriptor that is readable while [`turn`](Self::turn) has work; it can be put
    /// into another epoll set. Deadlines do not make it readable.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what can be done without waiting: takes orders, starts attempts, advances those whose
    /// sockets are ready, and ends those whose time is over.
    ///
    /// The work of one call is bounded; if there is more, `as_fd` stays readable or
    /// [`next_deadline`](Self::next_deadline) has come.
    pub fn turn(&mut self, now: Instant) {
        let mut keys = self.epoll.ready(self.share_of_a_turn());
        if keys.first() == Some(&BELL) {
            keys.remove(0);
            // Before anything that it tells of is looked at: a later ring stays.
            self.bell.silence();
            self.take_orders(now);
            self.take_answers(now);
        }
        for key in keys {
            self.advance(key, now);
        }
        self.expire(now);
    }

    /// Returns the time at which to call [`turn`](Self::turn) even if `as_fd` is not readable.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the next outcome, with the owner of the order. Drain after every `turn`, and after
    /// [`close`](Self::close).
    #[must_use]
    pub fn poll_outcome(&mut self) -> Option<(T, DialOutcome)> {
        self.outcomes.pop_front()
    }

    /// Returns the next session of an order that was cancelled. Its peer would wait for this end,
    /// and has to be told that it is not taken. Drain after every `turn`.
    #[must_use]
    pub fn poll_unwanted(&mut self) -> Option<Established> {
        self.unwanted.pop_front()
    }

    /// Cancels all dials, and takes no orders for new sessions any more. Sessions are resumed as
    /// before, until the dialer is dropped.
    pub fn close(&mut self, now: Instant) {
        self.desk.close();
        self.take_orders(now);
        let orders = self.orders.iter();
        let dials = orders.filter(|(_, order)| matches!(order.aim, Aim::Session(_)));
        let dials: Vec<u64> = dials.map(|(id, _)| *id).collect();
        dials.into_iter().for_each(|id| self.cancel(id, now));
    }

    /// Returns whether no peer waits for a word about a session that is not wanted.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let mut attempts = self.attempts.values();
        self.unwanted.is_empty()
            && !attempts.any(|attempt| attempt.order.is_none() && attempt.may_be_session())
    }

    // ---- Orders ----------------------------------------------------------------------

    fn take_orders(&mut self, now: Instant) {
        for order in self.desk.take_orders() {
            match order {
                Order::Dial(named, request) => self.take_dial(named, request, now),
                Order::Resume(named, request) => {
                    let ResumeRequest {
                        address,
                        local,
                        ticket,
                        timeout,
                    } = request;
                    let aim = Aim::Resumption {
                        address,
                        ticket: Box::new(ticket),
                        deadline: after(now, timeout),
                    };
                    self.enter(named, Arc::new(local), aim, now);
                }
                Order::Cancel(id) => self.cancel(id, now),
            }
        }
    }

    fn take_dial(&mut self, named: Named<T>, request: DialRequest, now: Instant) {
        let DialRequest {
            address,
            mut local,
            timeout,
            tries_again,
        } = request;
        local.dialed = Some(address.as_str().into());
        let times = (timeout, local.handshake_timeout);
        match Dial::begin(address, tries_again, times, now) {
            Ok(dial) => self.enter(named, Arc::new(local), Aim::Session(dial), now),
            Err(error) => self.put_out(named, DialOutcome::Dialed(Err(error))),
        }
    }

    fn enter(&mut self, named: Named<T>, local: Arc<Local>, aim: Aim, now: Instant) {
        let id = named.id;
        let order = Ordered {
            named,
            local,
            aim,
            attempts: Vec::new(),
            timer: None,
        };
        self.orders.insert(id, order);
        // Started with the others that are due, so that a turn starts no more than its share.
        self.set_order_timer(id, Some(now));
    }

    fn cancel(&mut self, id: u64, now: Instant) {
        let Some(order) = self.take_out(id) else {
            return;
        };
        let outcome = match order.aim {
            Aim::Session(dial) => DialOutcome::Dialed(Err(dial.cancelled(now))),
            Aim::Resumption { address, .. } => {
                DialOutcome::Resumed(Err(ResumeError::Cancelled { address }))
            }
        };
        self.put_out(order.named, outcome);
    }

    /// Removes an order and gives its attempts up, but for those whose peers may have a session.
    fn take_out(&mut self, id: u64) -> Option<Ordered<T>> {
        self.set_order_timer(id, None);
        let order = self.orders.remove(&id)?;
        for &key in &order.attempts {
            match self.attempts.get_mut(&key) {
                Some(attempt) if attempt.may_be_session() => attempt.order = None,
                Some(_) => {
                    if let Some(attempt) = self.remove_attempt(key) {
                        attempt.give_up(self.epoll.watch(key));
                    }
                }
                None => {}
            }
        }
        Some(order)
    }

    fn end(&mut self, id: u64, outcome: DialOutcome) {
        if let Some(order) = self.take_out(id) {
            self.put_out(order.named, outcome);
        }
    }

    fn put_out(&mut self, named: Named<T>, outcome: DialOutcome) {
        // Spares the dialer an order that it would ignore; see `Dialing`.
        named.is_over.store(true, Ordering::Relaxed);
        self.outcomes.push_back((named.owner, outcome));
    }

    /// Takes the resolver's answers and the results of device jobs.
    fn take_answers(&mut self, now: Instant) {
        for (id, found) in self.resolver.take_done() {
            if let Some(Ordered {
                aim: Aim::Session(dial),
                ..
            }) = self.orders.get_mut(&id)
            {
                dial.handle_looked_up(found, now);
                self.set_order_timer(id, Some(now));
            }
        }
        for (key, outcome) in self.device_jobs.take_done() {
            let attempt = self.attempts.get_mut(&key);
            if let Some(talk) = attempt.and_then(DialAttempt::handshake) {
                talk.handle_outcome(outcome);
                self.advance(key, now);
            }
        }
    }

    /// Does what is due for an order.
    fn go_on(&mut self, id: u64, now: Instant) {
        loop {
            let Some(order) = self.orders.get_mut(&id) else {
                return;
            };
            let dial = match &mut order.aim {
                Aim::Session(dial) => dial,
                Aim::Resumption {
                    address,
                    ticket,
                    deadline,
                } => {
                    let (address, ticket, deadline) = (*address, ticket.clone(), *deadline);
                    self.set_order_timer(id, None);
                    return self.start(id, address, Some(*ticket), deadline, now);
                }
            };
            let mut random = [0];
            // Without random bytes the pause is the longest.
            let _ = ibex_base::random::fill(&mut random);
            match dial.poll(now, random[0]) {
                Action::LookUp => {
                    if let Err(error) = self.resolver.begin(id, dial.address()) {
                        dial.handle_shortage("start a thread that resolves the name", error, now);
                    }
                }
                Action::Try(address) => {
                    let deadline = dial.deadline();
                    self.start(id, address, None, deadline, now);
                }
                Action::Wait(at) => return self.set_order_timer(id, Some(at)),
                Action::End(error) => return self.end(id, DialOutcome::Dialed(Err(error))),
            }
        }
    }

    // ---- Time ------------------------------------------------------------------------

    /// Handles what is due, as much as one turn may.
    fn expire(&mut self, now: Instant) {
        for _ in 0..self.share_of_a_turn() {
            let Some(&(at, timed)) = self.timers.first() else {
                return;
            };
            if at > now {
                return;
            }
            match timed {
                Timed::DialAttempt(key) => self.advance(key, now),
                Timed::Order(id) => self.go_on(id, now),
            }
        }
    }

    fn set_attempt_timer(&mut self, key: u64) {
        if let Some(attempt) = self.attempts.get_mut(&key) {
            let timer = attempt.deadline();
            let before = std::mem::replace(&mut attempt.timer, timer);
            self.move_timer(Timed::DialAttempt(key), before, timer);
        }
    }

    fn set_order_timer(&mut self, id: u64, timer: Option<Instant>) {
        if let Some(order) = self.orders.get_mut(&id) {
            let before = std::mem::replace(&mut order.timer, timer);
            self.move_timer(Timed::Order(id), before, timer);
        }
    }

    fn move_timer(&mut self, timed: Timed, before: Option<Instant>, to: Option<Instant>) {
        if before == to {
            return;
        }
        if let Some(at) = before {
            self.timers.remove(&(at, timed));
        }
        if let Some(at) = to {
            self.timers.insert((at, timed));
        }
    }

    /// Returns the most attempts that a turn starts, and that it advances.
    fn share_of_a_turn(&self) -> usize {
        match self.is_authenticated {
            true => HANDSHAKES_PER_TURN,
            false => ATTEMPTS_PER_TURN,
        }
    }
}

impl<T> Drop for Dialer<T> {
    fn drop(&mut self) {
        self.desk.end();
    }
}

/// The bell's key in the epoll set.
const BELL: u64 = 0;

/// Most attempts that a turn starts, and that it advances, so that an engine with other work gets
/// to it. To start one takes some 20 µs.
const ATTEMPTS_PER_TURN: usize = 32;
/// Bound of one turn where handshakes are inside TLS: one end of it computes for some 80 µs.
const HANDSHAKES_PER_TURN: usize = 8;
