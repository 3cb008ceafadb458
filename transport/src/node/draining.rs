//! Draining: calls that have begun on this node end, and no other begins.
//!
//! A service that answers calls registers here. It counts each call that comes, and then looks at
//! [`NodeState::is_draining`]. The drain sets that flag before it reads the counts. Both sides use
//! sequentially consistent operations, so either the service refuses a call or the drain counts it.
#![forbid(unsafe_code)]

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    task::Waker,
};

use ibex_base::sync::{AtomicBool, AtomicUsize, Mutex, lock};
use ibex_ring::parking::{Ticket, WaitSlot, Wakers};

use super::{NodeState, SessionShared};

/// What takes part in the drain of its node, such as a service that answers calls.
pub trait DrainParticipant: Send + Sync {
    /// Refuses calls that it has not begun, and those that come later. Never waits.
    fn begin_drain(&self);

    /// Returns the number of calls that have begun and not ended.
    fn running(&self) -> usize;

    /// Returns whether notices about calls wait for room, for callers that are still there.
    fn has_pending_notices(&self) -> bool;

    /// Tells callers that every call which had begun is answered, and no other begins.
    fn announce_drained(&self);
}

/// State of a node's drain.
#[derive(Default)]
pub(crate) struct Draining {
    pub(crate) is_draining: AtomicBool,
    /// Calls that handlers had when the drain began, and that have ended since.
    finished: AtomicUsize,
    participants: Mutex<Vec<Weak<dyn DrainParticipant>>>,
    /// The drain's thread or task, while calls run or notices about them wait.
    pub(crate) waiters: WaitSlot,
}

impl Draining {
    /// Makes the drain look again, because a session has ended or the node was closed.
    pub(crate) fn take_waiters(&self, wakers: &mut Wakers) {
        self.waiters.take(wakers);
    }
}

/// State of a peer's drain, as the peer has reported it to a session.
///
/// Nothing else is read because of the flags, so they are relaxed. The engine sets them before it
/// takes the waiters, or ends the channels of calls, which orders what the callers see.
#[derive(Default)]
pub(crate) struct PeerDraining {
    drains: AtomicBool,
    has_drained: AtomicBool,
    /// Wakers of callers, whose calls may wait to be sent.
    waiters: WaitSlot,
}

impl PeerDraining {
    /// Takes in the peer's notice. Returns whether it is the first one.
    pub(crate) fn hear(&self, is_done: bool) -> bool {
        if is_done {
            self.has_drained.store(true, Ordering::Relaxed);
        }
        !self.drains.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn take_waiters(&self, wakers: &mut Wakers) {
        self.waiters.take(wakers);
    }
}

impl SessionShared {
    /// Returns whether the peer refuses to begin calls that it would serve.
    #[inline]
    #[must_use]
    pub fn peer_drains(&self) -> bool {
        self.draining.drains.load(Ordering::Relaxed)
    }

    /// Leaves `waker` to be called when the peer announces its drain.
    /// [`leave_peer_drains`](Self::leave_peer_drains) takes it back.
    pub fn wake_when_peer_drains(&self, waker: &Waker) -> Ticket {
        self.draining.waiters.register(waker)
    }

    /// Takes a waker of [`wake_when_peer_drains`](Self::wake_when_peer_drains) back.
    pub fn leave_peer_drains(&self, ticket: &mut Option<Ticket>) {
        self.draining.waiters.leave(ticket);
    }

    /// Returns whether the peer has answered all calls that it had begun.
    #[must_use]
    pub fn peer_has_drained(&self) -> bool {
        self.draining.has_drained.load(Ordering::Relaxed)
    }
}

impl NodeState {
    /// Returns whether this node has stopped beginning calls.
    #[inline]
    #[must_use]
    pub fn is_draining(&self) -> bool {
        // COUNTED, pairs with `Runtime::begin_drain`.
        self.draining.is_draining.load(Ordering::SeqCst)
    }

    /// Registers a service, which takes part when the node drains.
    pub fn join_drain(&self, participant: Arc<dyn DrainParticipant>) {
        let mut participants = lock(&self.draining.participants);
        participants.retain(|participant| participant.strong_count() > 0);
        participants.push(Arc::downgrade(&participant));
        drop(participants);
        if self.is_draining() {
            participant.begin_drain();
        }
    }

    /// Returns the number of calls that have begun on this node and not ended.
    #[must_use]
    pub fn running_calls(&self) -> usize {
        let mut running = 0;
        self.for_participants(|participant| running += participant.running());
        running
    }

    /// Counts a call of a handler that ends while the node drains.
    pub fn count_drained_call(&self) {
        self.draining.finished.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls that handlers had when the node began to drain, and that have
    /// ended since.
    #[must_use]
    pub fn drained_calls(&self) -> usize {
        self.draining.finished.load(Ordering::Relaxed)
    }

    /// Returns whether notices about calls wait for room.
    #[must_use]
    pub fn has_pending_notices(&self) -> bool {
        let mut has_some = false;
        self.for_participants(|participant| has_some |= participant.has_pending_notices());
        has_some
    }

    /// Tells callers, after their answers, that every call which had begun here is answered.
    pub fn announce_drained(&self) {
        self.for_participants(|participant| participant.announce_drained());
    }

    /// Makes the drain look again, because a call has ended, notices about calls have gone out, or
    /// a caller is gone. Costs one load while the node does not drain.
    pub fn wake_drain(&self) {
        self.draining.waiters.wake_all();
    }

    pub(crate) fn for_participants(&self, mut act: impl FnMut(&dyn DrainParticipant)) {
        // The list is copied, because a service may run code that registers another service.
        let participants = lock(&self.draining.participants).clone();
        let participants = participants.iter().filter_map(Weak::upgrade);
        participants.for_each(|participant| act(&*participant));
    }
}

ibex_base::debug_fields!([] Draining: |draining| is_draining = draining.is_draining);
