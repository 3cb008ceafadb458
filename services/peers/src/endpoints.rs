//! The connected peers of a keeping, each with what a program has opened there, and the choice of
//! one of them.

mod endpoint;

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use ibex_core::{
    Peer,
    extend::{fork, lock},
};

use super::{
    board::{Board, BoardPoll},
    inbox::Inbox,
    tried::Tried,
};

pub use self::endpoint::{ChosenEndpoint, PeerEndpoint};

/// The connected peers of [`Peers`](super::Peers), each with a handle of type `T`.
pub struct Endpoints<T> {
    pub(super) board: Arc<Board>,
    pub(super) inbox: Arc<Inbox>,
    open: Box<dyn Fn(&Peer) -> T + Send + Sync>,
    is_open: fn(&T) -> Option<bool>,
    /// Nothing is called while it is locked: handles have wakers called, which may make calls.
    set: Mutex<EndpointSet<T>>,
    /// A thread opens handles.
    is_refreshing: AtomicBool,
}

/// The endpoints, as they followed from the board.
struct EndpointSet<T> {
    /// The board's count of changes, or [`STALE`].
    version: u64,
    all: Arc<Vec<Arc<PeerEndpoint<T>>>>,
}

/// The one refresh at a time. When it is over, others that wait look again.
struct Refresh<'a> {
    is_under_way: &'a AtomicBool,
    board: &'a Board,
}

/// The reason why there is no endpoint for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEndpoint {
    /// The keeping has ended.
    Ended,
    /// The deadline has passed.
    Late,
    /// The call has excluded all that are connected.
    Excluded,
}

/// Result of a check for an endpoint.
pub(super) enum EndpointPoll<T> {
    Chosen(ChosenEndpoint<T>),
    /// The board has changed.
    Stale,
    /// All were tried, and a pause has begun.
    Paused,
    Excluded,
}

impl<T> Endpoints<T> {
    /// Creates the endpoints of a keeping. `open` opens the handle in a new session, and `is_open`
    /// tells whether the peer has opened its end; `None` if that is not known now.
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
                all: Arc::default(),
            }),
            is_refreshing: AtomicBool::new(false),
        };
        // Peers that are connected learn now what is opened, and not with the first call.
        endpoints.refresh();
        endpoints
    }

    /// Waits for an endpoint that `tried` allows, until the deadline.
    pub fn choose(
        &self,
        tried: &mut Tried,
        deadline: Option<Instant>,
    ) -> Result<ChosenEndpoint<T>, NoEndpoint> {
        let found = self.check(tried);
        match self.result(found) {
            Some(result) => result,
            None => self.block_on(self.choose_async(tried, deadline)),
        }
    }

    /// Chooses a second endpoint for a call that is under way at `first`: another peer, which serves
    /// calls, is not avoided, and was not tried. There is none while `first` serves no calls yet.
    /// Never waits.
    pub fn choose_second(
        &self,
        first: &PeerEndpoint<T>,
        tried: &Tried,
    ) -> Option<ChosenEndpoint<T>> {
        let may_be_second = self.second_to(first, tried)?;
        let (all, _) = self.snapshot();
        let seconds: Vec<_> = all.iter().filter(|other| may_be_second(other)).collect();
        Self::less_busy_of_two(&seconds).map(ChosenEndpoint::new)
    }

    /// Returns whether [`choose_second`](Self::choose_second) has a choice.
    pub fn has_second(&self, first: &PeerEndpoint<T>, tried: &Tried) -> bool {
        let may_be_second = self.second_to(first, tried);
        may_be_second.is_some_and(|may| self.snapshot().0.iter().any(|other| may(other)))
    }

    /// Returns the condition of a second endpoint, if there may be one.
    fn second_to<'a>(
        &'a self,
        first: &'a PeerEndpoint<T>,
        tried: &'a Tried,
    ) -> Option<impl Fn(&PeerEndpoint<T>) -> bool + use<'a, T>> {
        if fork::is_child() || self.tier(first) != SERVES {
            return None;
        }
        let now = Instant::now();
        Some(move |other: &PeerEndpoint<T>| {
            !other.is_of(&first.peer)
                && other.is_usable()
                && !tried.excludes(&other.peer)
                && !tried.has(&other.peer)
                && !other.is_avoided(now)
                && self.tier(other) == SERVES
        })
    }

    /// Returns what a check has found. `None` says that another check is needed.
    pub(super) fn result(
        &self,
        found: BoardPoll<EndpointPoll<T>>,
    ) -> Option<Result<ChosenEndpoint<T>, NoEndpoint>> {
        match found? {
            Some(EndpointPoll::Chosen(endpoint)) => Some(Ok(endpoint)),
            Some(EndpointPoll::Excluded) => Some(Err(NoEndpoint::Excluded)),
            None => Some(Err(NoEndpoint::Ended)),
            Some(EndpointPoll::Stale) => {
                self.refresh();
                None
            }
            Some(EndpointPoll::Paused) => None,
        }
    }

    /// Looks for an endpoint. Takes short locks, and opens no handle.
    pub(super) fn check(&self, tried: &mut Tried) -> BoardPoll<EndpointPoll<T>> {
        if fork::is_child() {
            return Some(None);
        }
        let (all, is_stale) = self.snapshot();
        if is_stale {
            // A keeping that has ended stays stale.
            if self.board.is_over() {
                return Some(None);
            }
            // While another thread opens handles, there are those that it found.
            if !self.is_refreshing.load(Ordering::Relaxed) {
                return Some(Some(EndpointPoll::Stale));
            }
        }
        let now = Instant::now();
        tried.end_pause(now);
        let mut best = self.best(&all, tried);
        if best.is_empty() {
            let are_excluded = !is_stale && all.iter().any(|endpoint| endpoint.is_usable());
            return are_excluded.then_some(Some(EndpointPoll::Excluded));
        }
        best.retain(|endpoint| !tried.has(&endpoint.peer));
        if best.is_empty() {
            let has_begun = tried.begin_pause(now);
            return has_begun.then_some(Some(EndpointPoll::Paused));
        }
        if best.iter().any(|endpoint| !endpoint.is_avoided(now)) {
            best.retain(|endpoint| !endpoint.is_avoided(now));
        }
        let chosen = Self::less_busy_of_two(&best)?;
        Some(Some(EndpointPoll::Chosen(ChosenEndpoint::new(chosen))))
    }

    /// Returns the endpoints, and whether they do not follow the board any more.
    fn snapshot(&self) -> (Arc<Vec<Arc<PeerEndpoint<T>>>>, bool) {
        let set = lock(&self.set);
        (set.all.clone(), set.version != self.board.version())
    }

    /// Returns those endpoints that `tried` allows and that are preferred.
    fn best<'a>(
        &self,
        all: &'a [Arc<PeerEndpoint<T>>],
        tried: &Tried,
    ) -> Vec<&'a Arc<PeerEndpoint<T>>> {
        let (mut best, mut best_tier) = (Vec::new(), u8::MAX);
        for endpoint in all {
            if !endpoint.is_usable() || tried.excludes(&endpoint.peer) {
                continue;
            }
            // Asked once, since the answer may be another one the next time.
            let tier = self.tier(endpoint);
            if tier < best_tier {
                best_tier = tier;
                best.clear();
            }
            if tier == best_tier {
                best.push(endpoint);
            }
        }
        best
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
            _ if endpoint.peer.is_suspended() => 2,
            Some(true) => SERVES,
            _ => 1,
        }
    }

    /// Returns whether the peer has opened its end; `None` if that is not known now.
    pub(super) fn is_open(&self, endpoint: &PeerEndpoint<T>) -> Option<bool> {
        if endpoint.is_open.load(Ordering::Relaxed) {
            return Some(true);
        }
        let is_open = (self.is_open)(&endpoint.opened)?;
        endpoint.is_open.fetch_or(is_open, Ordering::Relaxed);
        Some(is_open)
    }

    /// Returns whether there is another endpoint that `tried` allows and that has a connection, so
    /// that a call need not wait for this one's.
    pub fn has_another(&self, than: &PeerEndpoint<T>, tried: &Tried) -> bool {
        !fork::is_child()
            && self.snapshot().0.iter().any(|other| {
                !other.is_of(&than.peer)
                    && other.is_usable()
                    && !tried.excludes(&other.peer)
                    && !other.peer.is_suspended()
            })
    }

    /// Returns whether another endpoint that `tried` allows serves calls.
    pub(super) fn is_served_elsewhere(&self, tried: &Tried) -> bool {
        let (all, _) = self.snapshot();
        let mut best = self.best(&all, tried).into_iter();
        best.any(|endpoint| self.tier(endpoint) == SERVES)
    }

    /// Has the handle of this endpoint opened anew, because it has ended and the session has not.
    pub fn renew(&self, endpoint: &PeerEndpoint<T>) {
        if fork::is_child() {
            return;
        }
        let mut set = lock(&self.set);
        if !endpoint.has_ended.swap(true, Ordering::Relaxed) {
            set.version = STALE;
        }
    }

    /// Brings the endpoints in line with the board, unless another thread does so.
    fn refresh(&self) {
        if fork::is_child() {
            return;
        }
        let Some(_refresh) = Refresh::begin(self) else {
            return;
        };
        let (before, is_stale) = self.snapshot();
        let Some((peers, version)) = self.board.connected_at().filter(|_| is_stale) else {
            return;
        };
        let all = peers.into_iter().map(|peer| {
            let mut before = before.iter();
            let known = before.find(|endpoint| endpoint.is_of(&peer) && !endpoint.has_ended());
            known.cloned().unwrap_or_else(|| {
                let handle = (self.open)(&peer);
                Arc::new(PeerEndpoint::new(peer, handle))
            })
        });
        let mut all = Arc::new(all.collect::<Vec<_>>());
        let mut set = lock(&self.set);
        // Handles may have ended meanwhile.
        set.version = match all.iter().any(|endpoint| endpoint.has_ended()) {
            true => STALE,
            false => version,
        };
        mem::swap(&mut set.all, &mut all);
        // Handles of sessions that are over are dropped outside of the lock.
        drop(set);
        drop((all, before));
    }

    /// Returns the words of a call that waits for a peer in vain.
    pub fn missing(&self) -> String {
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

impl<'a> Refresh<'a> {
    /// Begins a refresh, unless another thread has.
    fn begin<T>(of: &'a Endpoints<T>) -> Option<Self> {
        let is_under_way = &of.is_refreshing;
        // Made only then: dropping one ends the refresh that is under way, whoever runs it.
        (!is_under_way.swap(true, Ordering::Relaxed)).then(|| Self {
            is_under_way,
            board: &of.board,
        })
    }
}

impl Drop for Refresh<'_> {
    fn drop(&mut self) {
        // The slot's barriers order this before the question whether others wait, and their looks
        // after their registration.
        self.is_under_way.store(false, Ordering::Relaxed);
        self.board.wake();
    }
}

/// The first in the order of preference: the peer serves calls.
const SERVES: u8 = 0;
/// A version that no board has.
const STALE: u64 = u64::MAX;
/// The most addresses whose last failures an error names.
const MOST_FAILURES: usize = 3;
#[cfg(test)]
mod tests;
