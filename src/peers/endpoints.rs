//! The connected peers of a keeping, each with what a program has opened there, and the choice of
//! one of them.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use ibex_base::{BackOff, fork, sync::lock};
use ibex_ring::parking::Patience;

use super::{
    alarms::AlarmKey,
    board::{Board, BoardPoll},
    endpoint_wait::EndpointWait,
    inbox::Inbox,
    tried::Tried,
};
use crate::Peer;

/// The connected peers of [`Peers`](super::Peers), each with a handle of type `T`.
pub(crate) struct Endpoints<T> {
    pub(super) board: Arc<Board>,
    inbox: Arc<Inbox>,
    open: Box<dyn Fn(&Peer) -> T + Send + Sync>,
    is_open: fn(&T) -> Option<bool>,
    set: Mutex<EndpointSet<T>>,
}

/// The endpoints, as they followed from the board.
struct EndpointSet<T> {
    /// The board's count of changes, or [`STALE`].
    version: u64,
    all: Vec<Arc<PeerEndpoint<T>>>,
}

/// A session with a peer, and what was opened in it.
pub(crate) struct PeerEndpoint<T> {
    pub(crate) peer: Peer,
    pub(crate) opened: T,
    /// The peer has opened its end.
    is_open: AtomicBool,
    /// The calls under way from here.
    under_way: AtomicUsize,
    /// Refusals in a row.
    refusals: AtomicU32,
    /// Others are preferred until then.
    avoided_until: Mutex<Option<Instant>>,
}

/// An endpoint that a call uses. It counts as under way there until this is dropped.
pub(crate) struct ChosenEndpoint<T>(Arc<PeerEndpoint<T>>);

/// The reason why there is no endpoint for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoEndpoint {
    /// The keeping has ended.
    Ended,
    /// The deadline has passed.
    Late,
    /// The call has excluded all that are connected.
    Excluded,
}

/// Result of a look for an endpoint.
pub(super) enum EndpointLook<T> {
    Chosen(ChosenEndpoint<T>),
    /// The board has changed.
    Stale,
    /// All were tried, and a pause has begun.
    Paused,
    Excluded,
}

impl<T> Endpoints<T> {
    /// Creates the endpoints of a keeping. `open` opens the handle in a new session, and `is_open`
    /// tells whether the peer has opened its end; `None` if that cannot be said now.
    pub(super) fn new(
        board: Arc<Board>,
        inbox: Arc<Inbox>,
        open: Box<dyn Fn(&Peer) -> T + Send + Sync>,
        is_open: fn(&T) -> Option<bool>,
    ) -> Self {
        let endpoints = Self {
            board,
            inbox,
            open,
            is_open,
            set: Mutex::new(EndpointSet {
                version: STALE,
                all: Vec::new(),
            }),
        };
        // Peers that are connected learn now what is opened, and not with the first call.
        endpoints.refresh();
        endpoints
    }

    /// Waits for an endpoint that `tried` allows, until the deadline.
    pub(crate) fn choose(
        &self,
        tried: &mut Tried,
        deadline: Option<Instant>,
    ) -> Result<ChosenEndpoint<T>, NoEndpoint> {
        loop {
            let mut found = self.look(tried);
            if found.is_none() {
                let patience = Patience::Until(soonest(deadline, tried.pause_until()));
                found = self.board.wait(patience, || self.look(tried));
            }
            match self.result(found) {
                Some(result) => return result,
                None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(NoEndpoint::Late);
                }
                None => {}
            }
        }
    }

    /// Waits as [`choose`](Self::choose) does, for a task.
    pub(crate) fn choose_async<'a>(
        &'a self,
        tried: &'a mut Tried,
        deadline: Option<Instant>,
    ) -> EndpointWait<'a, T> {
        EndpointWait::new(self, tried, deadline)
    }

    /// Returns what a look has found. `None` says that another look is needed.
    pub(super) fn result(
        &self,
        found: BoardPoll<EndpointLook<T>>,
    ) -> Option<Result<ChosenEndpoint<T>, NoEndpoint>> {
        match found? {
            Some(EndpointLook::Chosen(endpoint)) => Some(Ok(endpoint)),
            Some(EndpointLook::Excluded) => Some(Err(NoEndpoint::Excluded)),
            None => Some(Err(NoEndpoint::Ended)),
            Some(EndpointLook::Stale) => {
                self.refresh();
                None
            }
            Some(EndpointLook::Paused) => None,
        }
    }

    /// Looks for an endpoint. Takes short locks, and neither opens nor drops a handle.
    pub(super) fn look(&self, tried: &mut Tried) -> BoardPoll<EndpointLook<T>> {
        if fork::is_child() {
            return Some(None);
        }
        let set = lock(&self.set);
        let is_stale = set.version != self.board.version();
        if is_stale {
            drop(set);
            // A keeping that has ended stays stale.
            let is_over = self.board.connected_at().is_none();
            return Some((!is_over).then_some(EndpointLook::Stale));
        }
        let usable = |endpoint: &&Arc<PeerEndpoint<T>>| endpoint.is_usable();
        let usable: Vec<_> = set.all.iter().filter(usable).collect();
        let allowed = |endpoint: &&&Arc<PeerEndpoint<T>>| !tried.excludes(&endpoint.peer);
        let tier = usable.iter().filter(allowed).map(|one| self.tier(one));
        let Some(tier) = tier.min() else {
            return (!usable.is_empty()).then_some(Some(EndpointLook::Excluded));
        };
        let mut best: Vec<_> = usable.iter().filter(allowed).copied().collect();
        best.retain(|endpoint| self.tier(endpoint) == tier);
        let now = Instant::now();
        if !best.iter().any(|endpoint| !tried.has(&endpoint.peer)) {
            match tried.pause(now) {
                // The pause is over, and all may be tried again.
                None => {}
                Some(has_begun) => return has_begun.then_some(Some(EndpointLook::Paused)),
            }
        }
        best.retain(|endpoint| !tried.has(&endpoint.peer));
        if best.iter().any(|endpoint| !endpoint.is_avoided(now)) {
            best.retain(|endpoint| !endpoint.is_avoided(now));
        }
        let chosen = Self::less_busy_of_two(&best)?;
        Some(Some(EndpointLook::Chosen(ChosenEndpoint::new(chosen))))
    }

    /// Returns the one of two, drawn at random, that has fewer calls under way
    /// (Mitzenmacher, [The Power of Two Choices in Randomized Load
    /// Balancing](https://www.eecs.harvard.edu/~michaelm/postscripts/tpds2001.pdf)).
    fn less_busy_of_two(among: &[&Arc<PeerEndpoint<T>>]) -> Option<Arc<PeerEndpoint<T>>> {
        let [one, ..] = among else {
            return None;
        };
        if among.len() == 1 {
            return Some((*one).clone());
        }
        // Each of these has another key, without a call of the system. It need not be hard to guess.
        let random = RandomState::new().hash_one(0);
        let first = random as u32 as usize % among.len();
        let step = 1 + (random >> 32) as usize % (among.len() - 1);
        let [first, second] = [first, (first + step) % among.len()].map(|place| among[place]);
        let busier = first.under_way() > second.under_way();
        Some(if busier { second } else { first }.clone())
    }

    /// The order of preference: the peer serves calls, it has not opened its end, its session is
    /// suspended.
    fn tier(&self, endpoint: &PeerEndpoint<T>) -> u8 {
        match self.is_open(endpoint) {
            _ if endpoint.peer.session().is_suspended() => 2,
            Some(true) => 0,
            _ => 1,
        }
    }

    /// Returns whether the peer has opened its end; `None` if that cannot be said now.
    fn is_open(&self, endpoint: &PeerEndpoint<T>) -> Option<bool> {
        if endpoint.is_open.load(Ordering::Relaxed) {
            return Some(true);
        }
        let is_open = (self.is_open)(&endpoint.opened)?;
        endpoint.is_open.fetch_or(is_open, Ordering::Relaxed);
        Some(is_open)
    }

    /// Returns whether there is another endpoint, so that a call need not wait for this one.
    pub(crate) fn has_another(&self, than: &PeerEndpoint<T>) -> bool {
        let set = lock(&self.set);
        let mut others = set.all.iter();
        others.any(|other| !other.is_of(&than.peer) && other.is_usable())
    }

    /// Returns whether the peer has not opened its end, and another one has.
    pub(super) fn is_in_vain_at(&self, endpoint: &PeerEndpoint<T>) -> bool {
        self.is_open(endpoint) == Some(false) && {
            let others = lock(&self.set).all.clone();
            let mut others = others.iter().filter(|other| other.is_usable());
            others.any(|other| self.tier(other) == 0)
        }
    }

    /// Returns whether the peer is known to have opened its end.
    pub(super) fn is_known_open(&self, endpoint: &PeerEndpoint<T>) -> bool {
        self.is_open(endpoint) == Some(true)
    }

    /// Has the handle of this endpoint opened anew, because it has ended and the session has not.
    pub(crate) fn renew(&self, endpoint: &Arc<PeerEndpoint<T>>) {
        let mut set = lock(&self.set);
        let place = set.all.iter().position(|one| Arc::ptr_eq(one, endpoint));
        let ended = place.map(|place| {
            set.version = STALE;
            set.all.swap_remove(place)
        });
        // The handle is dropped outside of the lock.
        drop(set);
        drop(ended);
    }

    /// Brings the endpoints in line with the board.
    fn refresh(&self) {
        let mut dropped = Vec::new();
        let mut set = lock(&self.set);
        let Some((peers, version)) = self.board.connected_at() else {
            dropped.append(&mut set.all);
            drop(set);
            return drop(dropped);
        };
        if set.version == version {
            return;
        }
        dropped.append(&mut set.all);
        let all = peers.into_iter().map(|peer| {
            let known = dropped.iter().find(|endpoint| endpoint.is_of(&peer));
            known.cloned().unwrap_or_else(|| {
                let handle = (self.open)(&peer);
                Arc::new(PeerEndpoint::new(peer, handle))
            })
        });
        set.all = all.collect();
        set.version = version;
        drop(set);
        // Handles of sessions that are over are dropped outside of the lock.
        drop(dropped);
    }

    /// Has `waker` called at `at`, in place of the alarm `held`.
    pub(super) fn wake_at(&self, held: &mut Option<AlarmKey>, at: Instant, waker: &Waker) {
        self.inbox.wake_at(held, at, waker);
    }

    /// Takes an alarm back.
    pub(super) fn leave_alarm(&self, held: &mut Option<AlarmKey>) {
        self.inbox.alarms.leave(held);
    }

    /// Returns the words of a call that waits for a peer in vain.
    pub(crate) fn missing(&self) -> String {
        let failures = self.board.failures(MOST_FAILURES);
        match failures.is_empty() {
            true => "none is connected".to_owned(),
            false => format!(
                "none is connected; the last attempts: {}",
                failures.join("; ")
            ),
        }
    }
}

impl<T> PeerEndpoint<T> {
    fn new(peer: Peer, opened: T) -> Self {
        Self {
            peer,
            opened,
            is_open: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            refusals: AtomicU32::new(0),
            avoided_until: Mutex::default(),
        }
    }

    /// Returns whether calls may be sent there. The keeper may not have seen yet that they may not.
    fn is_usable(&self) -> bool {
        let session = self.peer.session();
        !session.is_over() && !session.peer_drains()
    }

    fn is_of(&self, peer: &Peer) -> bool {
        is_same(&self.peer, peer)
    }

    fn is_avoided(&self, now: Instant) -> bool {
        self.refusals.load(Ordering::Relaxed) > 0
            && lock(&self.avoided_until).is_some_and(|until| now < until)
    }

    fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

impl<T> ChosenEndpoint<T> {
    fn new(endpoint: Arc<PeerEndpoint<T>>) -> Self {
        endpoint.under_way.fetch_add(1, Ordering::Relaxed);
        Self(endpoint)
    }

    /// Notes that the peer took a call.
    pub(crate) fn answered(&self) {
        if !self.0.is_open.load(Ordering::Relaxed) {
            self.0.is_open.store(true, Ordering::Relaxed);
        }
        if self.0.refusals.load(Ordering::Relaxed) > 0 {
            self.0.refusals.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that the peer refused a call. Calls go to others for a moment, which grows with each
    /// refusal in a row: a peer that refuses at once would otherwise be the least busy one.
    pub(crate) fn refused(&self) {
        let refusals = self.0.refusals.fetch_add(1, Ordering::Relaxed);
        let pause = BACK_OFF.pause(refusals.saturating_add(1));
        *lock(&self.0.avoided_until) = Instant::now().checked_add(pause);
    }
}

impl<T> Deref for ChosenEndpoint<T> {
    type Target = Arc<PeerEndpoint<T>>;

    fn deref(&self) -> &Arc<PeerEndpoint<T>> {
        &self.0
    }
}

impl<T> Drop for ChosenEndpoint<T> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether both name one session.
pub(super) fn is_same(one: &Peer, other: &Peer) -> bool {
    Arc::ptr_eq(one.session(), other.session())
}

/// Returns the sooner of two times, of which each may be never.
pub(super) fn soonest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// A version that no board has.
const STALE: u64 = u64::MAX;
/// The most addresses whose last failures an error names.
const MOST_FAILURES: usize = 3;
/// The pauses of a call after all endpoints have refused it, and those in which an endpoint that
/// has refused is avoided.
pub(super) const BACK_OFF: BackOff =
    BackOff::new(Duration::from_millis(10), Duration::from_secs(1));
