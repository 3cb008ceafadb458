//! The board: all that a program sees of the peers that are kept.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
};

use ibex_core::{
    ConnectError, Peer,
    extend::{
        self, Runtime, fork, lock,
        parking::{Patience, Ticket, WaitSlot},
    },
};

use super::PeersEvent;

pub(crate) struct Board {
    runtime: Arc<Runtime>,
    shown: Mutex<Shown>,
    /// Counts the changes of the peers that are shown. Written under their lock.
    version: AtomicU64,
    waiters: WaitSlot,
}

#[derive(Default)]
struct Shown {
    /// The peers, under all of their addresses.
    peers: BTreeMap<String, Peer>,
    /// The last failures of the addresses that are not reached.
    failures: BTreeMap<String, String>,
    events: VecDeque<PeersEvent>,
    dropped: u64,
    is_over: bool,
}

impl Shown {
    /// Returns each session once, in the order of the addresses, but for those that the program
    /// closes.
    fn distinct(&self) -> Vec<Peer> {
        let mut known = HashSet::new();
        let peers = self.peers.values();
        peers
            .filter(|peer| !extend::is_ending(peer))
            .filter(|peer| known.insert(Arc::as_ptr(extend::session(peer))))
            .cloned()
            .collect()
    }
}

/// Result of a check by a call that waits; `None` within if nothing more will come.
pub(crate) type BoardPoll<T> = Option<Option<T>>;

impl Board {
    pub(super) fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            shown: Mutex::default(),
            version: AtomicU64::new(0),
            waiters: WaitSlot::new(),
        }
    }

    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    // ---- Writing by the keeper -------------------------------------------------------

    pub(super) fn tell(&self, event: PeersEvent) {
        let mut shown = self.lock();
        if shown.events.len() == MOST_EVENTS {
            shown.events.pop_front();
            shown.dropped += 1;
        }
        shown.events.push_back(event);
        drop(shown);
        self.wake();
    }

    /// Shows the peer at an address, or that there is none.
    pub(super) fn show(&self, address: &str, peer: Option<&Peer>) {
        self.change(|shown| {
            shown.failures.remove(address);
            match peer {
                Some(peer) => shown.peers.insert(address.to_owned(), peer.clone()),
                None => shown.peers.remove(address),
            };
        });
    }

    /// Shows why the last attempt did not reach an address.
    pub(super) fn show_failure(&self, address: &str, error: &ConnectError) {
        let mut shown = self.lock();
        shown.failures.insert(address.to_owned(), error.to_string());
    }

    /// Notes that the keeper has ended, so that nothing changes any more.
    pub(super) fn end(&self) {
        self.change(|shown| {
            shown.is_over = true;
            shown.peers.clear();
        });
    }

    /// Has all that wait look again.
    pub(super) fn wake(&self) {
        self.runtime.wake_at(&self.waiters);
    }

    fn change(&self, act: impl FnOnce(&mut Shown)) {
        let mut shown = self.lock();
        act(&mut shown);
        self.version.fetch_add(1, Ordering::Relaxed);
        drop(shown);
        self.wake();
    }

    // ---- Reading by the program ------------------------------------------------------

    pub(super) fn connected(&self) -> Vec<Peer> {
        let shown = self.unless_child();
        shown.map_or_else(Vec::new, |shown| shown.distinct())
    }

    /// Returns the number of the changes so far. The slot's barriers order the check of a waiter
    /// after its registration.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Returns the connected peers, and the number of changes that led to them. `None` once the
    /// keeping has ended.
    pub(super) fn connected_at(&self) -> Option<(Vec<Peer>, u64)> {
        let shown = self.lock();
        (!shown.is_over).then(|| (shown.distinct(), self.version()))
    }

    /// Returns whether the keeping has ended.
    pub(super) fn is_over(&self) -> bool {
        self.unless_child().is_none_or(|shown| shown.is_over)
    }

    /// Returns the texts of the last failures, of the first `most` addresses. Each names its address.
    pub(super) fn failures(&self, most: usize) -> Vec<String> {
        let shown = self.lock();
        shown.failures.values().take(most).cloned().collect()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.unless_child().map_or(0, |shown| shown.dropped)
    }

    /// Returns why the last attempt did not reach an address, if it did not.
    pub(super) fn failure(&self, address: &str) -> Option<String> {
        self.unless_child()?.failures.get(address).cloned()
    }

    /// Takes back the ticket that a poll left.
    pub(super) fn leave(&self, held: &mut Option<Ticket>) {
        self.waiters.leave(held);
    }

    pub(super) fn wait<T>(
        &self,
        patience: Patience,
        mut check: impl FnMut() -> BoardPoll<T>,
    ) -> BoardPoll<T> {
        if fork::is_child() {
            return Some(None);
        }
        match patience {
            Patience::None => {
                self.runtime.turn_for_caller();
                check()
            }
            Patience::Until(deadline) => self.runtime.wait_at(&self.waiters, deadline, check).ok(),
        }
    }

    pub(super) fn poll<T>(
        &self,
        held: &mut Option<Ticket>,
        waker: &Waker,
        check: impl FnMut() -> BoardPoll<T>,
    ) -> Poll<Option<T>> {
        if fork::is_child() {
            return Poll::Ready(None);
        }
        self.runtime.poll_at(&self.waiters, held, waker, check)
    }

    /// Looks for the next peer at `address` after `ended`, whose end the keeper may not have seen.
    pub(super) fn check_for(&self, address: &str, ended: Option<&Peer>) -> BoardPoll<Peer> {
        let shown = self.lock();
        let has_ended = |peer: &&Peer| ended.is_some_and(|ended| ended.is_same_session(peer));
        let is_there = |peer: &&Peer| !has_ended(peer) && !extend::is_ending(peer);
        match shown.peers.get(address).filter(is_there) {
            Some(peer) => Some(Some(peer.clone())),
            None => shown.is_over.then_some(None),
        }
    }

    pub(super) fn check_event(&self) -> BoardPoll<PeersEvent> {
        let mut shown = self.lock();
        match shown.events.pop_front() {
            Some(event) => Some(Some(event)),
            None => shown.is_over.then_some(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        lock(&self.shown)
    }

    /// `None` in a forked child, in which nobody may ever let go of the lock.
    fn unless_child(&self) -> Option<MutexGuard<'_, Shown>> {
        (!fork::is_child()).then(|| self.lock())
    }
}

/// The number of events that are kept for a reader.
const MOST_EVENTS: usize = 1024;
