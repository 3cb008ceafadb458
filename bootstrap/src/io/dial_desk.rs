//! The desk at which other threads leave a dialer its orders.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibex_base::Address;
use ibex_base::sync::lock;

use super::event_fd::EventFd;
use crate::local::Local;
use crate::resumption::ResumeTicket;

/// The way to have a [`Dialer`](crate::Dialer) dial, for any thread. Clones lead to the same
/// dialer.
pub struct DialDesk<T>(Arc<OrderQueue<T>>);

struct OrderQueue<T> {
    state: Mutex<State<T>>,
    /// Rung when there are orders.
    bell: Arc<EventFd>,
}

struct State<T> {
    orders: VecDeque<Order<T>>,
    next_id: u64,
    opening: AcceptedOrders,
}

/// The orders that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AcceptedOrders {
    All,
    /// Only sessions are resumed.
    Resumptions,
    Nothing,
}

pub(super) enum Order<T> {
    Dial(Named<T>, DialRequest),
    Resume(Named<T>, ResumeRequest),
    Cancel(u64),
}

/// The number of an order, and its owner.
pub(super) struct Named<T> {
    pub(super) id: u64,
    pub(super) owner: T,
    /// Set once the order is over, so that nothing is left to cancel.
    pub(super) is_over: Arc<AtomicBool>,
}

/// A new session that is wanted.
///
/// All addresses of a host name are tried, with growing pauses between the rounds, until one of them
/// gives a session. So a peer that starts later is found when it does. These answers are treated as
/// follows:
///
/// - Another protocol, another protocol version, or policies that exclude each other are errors at
///   once.
/// - A peer that closes the connection may be starting, ending or crowded, and is tried again. So
///   is a peer that says it is being closed, and one whose bytes changed on their way.
/// - A peer that accepts and falls silent (for `handshake_timeout`) is tried once more.
#[derive(Clone, Debug)]
pub struct DialRequest {
    /// The peer's address: `host:port`, with a literal IPv6 address in brackets.
    pub address: String,
    /// This node, as it presents itself to the peer.
    pub local: Local,
    /// The time after which the dial ends without a session.
    pub timeout: Duration,
    /// Whether a peer that is not there yet is waited for. Otherwise each address is tried once.
    pub tries_again: bool,
}

/// Another connection that is wanted for a session.
#[derive(Clone, Debug)]
pub struct ResumeRequest {
    /// The address of the session's peer.
    pub address: Address,
    /// This node, as it presents itself to the peer.
    pub local: Local,
    /// The session, and the epoch that is to begin.
    pub ticket: ResumeTicket,
    /// The time after which the attempt ends without a connection.
    pub timeout: Duration,
}

/// An order that a dialer has taken. Dropping it cancels the order.
///
/// If the peer may have a session already, the dialer still waits for the peer's answer, and hands
/// the session out by [`poll_unwanted`](crate::Dialer::poll_unwanted).
#[must_use = "dropping it cancels the order"]
pub struct Dialing<T> {
    id: u64,
    desk: Arc<OrderQueue<T>>,
    is_over: Arc<AtomicBool>,
}

impl<T: Send + 'static> DialDesk<T> {
    pub(super) fn new(bell: Arc<EventFd>) -> DialDesk<T> {
        let state = Mutex::new(State {
            orders: VecDeque::new(),
            next_id: 0,
            opening: AcceptedOrders::All,
        });
        DialDesk(Arc::new(OrderQueue { state, bell }))
    }

    /// Orders a new session. The dialer returns `owner` with the outcome.
    ///
    /// # Errors
    /// The dialer is closed; `owner` comes back.
    pub fn dial(&self, owner: T, request: DialRequest) -> Result<Dialing<T>, T> {
        self.order(owner, AcceptedOrders::All, |order| {
            Order::Dial(order, request)
        })
    }

    /// Orders an attempt to resume a session. The dialer returns `owner` with the outcome. The
    /// caller has suspended the session, and makes further attempts after growing pauses, each with
    /// the next higher epoch, until the error [`is_gone`](crate::ResumeError::is_gone) or the time
    /// given to the session has passed.
    ///
    /// # Errors
    /// The dialer has ended; `owner` comes back.
    pub fn resume(&self, owner: T, request: ResumeRequest) -> Result<Dialing<T>, T> {
        self.order(owner, AcceptedOrders::Resumptions, |order| {
            Order::Resume(order, request)
        })
    }

    fn order(
        &self,
        owner: T,
        latest: AcceptedOrders,
        make: impl FnOnce(Named<T>) -> Order<T>,
    ) -> Result<Dialing<T>, T> {
        let mut state = lock(&self.0.state);
        if state.opening > latest {
            return Err(owner);
        }
        let id = state.next_id;
        state.next_id += 1;
        let is_over = Arc::<AtomicBool>::default();
        state.orders.push_back(make(Named {
            id,
            owner,
            is_over: is_over.clone(),
        }));
        drop(state);
        self.0.bell.ring();
        Ok(Dialing {
            id,
            desk: self.0.clone(),
            is_over,
        })
    }

    pub(super) fn take_orders(&self) -> VecDeque<Order<T>> {
        mem::take(&mut lock(&self.0.state).orders)
    }

    /// Takes no more orders for new sessions.
    pub(super) fn close(&self) {
        let mut state = lock(&self.0.state);
        state.opening = state.opening.max(AcceptedOrders::Resumptions);
    }
}

impl<T> DialDesk<T> {
    /// Takes no more orders.
    pub(super) fn end(&self) {
        let mut state = lock(&self.0.state);
        state.opening = AcceptedOrders::Nothing;
        let left = mem::take(&mut state.orders);
        drop(state);
        // The drop of an owner is the caller's code, and runs without the lock.
        drop(left);
    }
}

impl<T> Drop for Dialing<T> {
    fn drop(&mut self) {
        // The flag only spares the dialer an order that it would ignore, so it needs no partner.
        if !self.is_over.load(Ordering::Relaxed) {
            self.desk.cancel(self.id);
        }
    }
}

impl<T> OrderQueue<T> {
    fn cancel(&self, id: u64) {
        let mut state = lock(&self.state);
        if state.opening != AcceptedOrders::Nothing {
            state.orders.push_back(Order::Cancel(id));
            drop(state);
            self.bell.ring();
        }
    }
}

impl<T> Clone for DialDesk<T> {
    fn clone(&self) -> DialDesk<T> {
        DialDesk(self.0.clone())
    }
}

impl<T> std::fmt::Debug for DialDesk<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DialDesk")
    }
}

ibex_base::debug_fields!([T] Dialing<T>: |dialing| is_over = dialing.is_over);
