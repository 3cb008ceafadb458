//! The place where a thread waits for all peers of a node, including those that will come.
//!
//! Each member has a waker that leaves the member's number here. So the woken thread looks only at
//! members with news, and idle peers cost nothing.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Wake, Waker},
    time::Instant,
};

use ibex_base::{
    fork,
    sync::{AtomicBool, Mutex, lock},
};
use ibex_ring::parking::{Condition, Ticket, TimedOut, WaitSlot, Wakers};

use super::{Looks, Runtime};
use crate::node::{SessionShared, push_live};

/// A place where threads and tasks wait for all peers of a node, and the news that came there.
#[derive(Clone, Debug)]
pub struct Gathering {
    runtime: Arc<Runtime>,
    told: Arc<Told>,
}

/// The news that wakers and engines leave for a gathering.
#[derive(Debug, Default)]
pub(crate) struct Told {
    slot: WaitSlot,
    /// True while `news` is not empty.
    is_told: AtomicBool,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
struct News {
    members: Vec<usize>,
    sessions: VecDeque<Arc<SessionShared>>,
}

impl Told {
    fn tell(&self, news: impl FnOnce(&mut News)) {
        news(&mut lock(&self.news));
        self.is_told.store(true, Ordering::Release);
    }

    /// Leaves the news that a session has come.
    pub(crate) fn session_came(&self, session: Arc<SessionShared>, wakers: &mut Wakers) {
        self.tell(|news| push_live(&mut news.sessions, session));
        self.slot.take(wakers);
    }

    /// Wakes the waiters, because the node is being closed.
    pub(crate) fn node_closes(&self, wakers: &mut Wakers) {
        self.slot.take(wakers);
    }
}

/// The waker of a member.
struct MemberWaker {
    told: Weak<Told>,
    member: usize,
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        if let Some(told) = self.told.upgrade() {
            told.tell(|news| news.members.push(self.member));
            told.slot.wake_all();
        }
    }
}

impl Gathering {
    /// Makes a gathering that learns of every session. Sessions that exist come first.
    #[must_use]
    pub fn of(runtime: &Arc<Runtime>) -> Self {
        let told = Arc::<Told>::default();
        runtime.gather(&told);
        Self {
            runtime: runtime.clone(),
            told,
        }
    }

    /// Returns the waker that leaves news of a member.
    #[must_use]
    pub fn waker(&self, member: usize) -> Waker {
        let told = Arc::downgrade(&self.told);
        Arc::new(MemberWaker { told, member }).into()
    }

    /// Returns the node's runtime.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Returns the kind of look that a waiting call needs.
    pub(crate) fn looks(in_memory: bool) -> Looks {
        match in_memory {
            true => Looks::Memory,
            false => Looks::Socket,
        }
    }

    /// Returns whether news has come since the last [`take`](Self::take).
    #[inline]
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.told.is_told.load(Ordering::Acquire)
    }

    /// Takes the news. Appends members with news to `members`, and sessions that have come to
    /// `sessions`.
    pub fn take(&self, members: &mut Vec<usize>, sessions: &mut VecDeque<Arc<SessionShared>>) {
        // The flag is cleared before the news is taken. Later news sets it again.
        self.told.is_told.swap(false, Ordering::AcqRel);
        let mut news = lock(&self.told.news);
        members.append(&mut news.members);
        sessions.append(&mut news.sessions);
    }

    /// Returns whether the node was closed, or belongs to the process that this one was forked
    /// from.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        fork::is_child() || self.runtime.is_closed()
    }

    /// Runs a turn, where callers turn the engine.
    pub fn poll(&self) {
        self.runtime.poll_in_passing();
    }

    /// Runs a turn for a caller that has found news so often that other peers may have waited long
    /// for a turn.
    pub fn look_around(&self) {
        self.runtime.look_around();
    }

    /// Leaves a waker, under `held`, for events of members, sessions and the node. A look follows.
    pub fn register(&self, held: &mut Option<Ticket>, waker: &Waker) {
        self.told.slot.renew(held, waker);
    }

    /// Takes back the waker that [`register`](Self::register) left.
    pub fn leave(&self, held: &mut Option<Ticket>) {
        self.told.slot.leave(held);
    }

    /// Waits until `condition` holds, which leaves its waker by [`register`](Self::register).
    /// `in_memory` says that every member's peer writes this process's memory.
    pub fn wait<C: Condition>(
        &self,
        deadline: Option<Instant>,
        in_memory: bool,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        let looks = Self::looks(in_memory);
        self.runtime.wait(deadline, looks, condition)
    }
}

/// The gatherings of a node that want to be told of sessions.
#[derive(Debug, Default)]
pub(crate) struct Gatherings(Mutex<Vec<Weak<Told>>>);

impl Gatherings {
    /// Adds a gathering, with the `sessions` that exist. The caller keeps new sessions from coming
    /// meanwhile.
    pub(crate) fn add(&self, told: &Arc<Told>, sessions: Vec<Arc<SessionShared>>) {
        told.tell(|news| news.sessions.extend(sessions));
        lock(&self.0).push(Arc::downgrade(told));
    }

    pub(crate) fn for_each(&self, mut tell: impl FnMut(&Told)) {
        let mut gatherings = lock(&self.0);
        gatherings.retain(|told| match told.upgrade() {
            Some(told) => {
                tell(&told);
                true
            }
            None => false,
        });
    }
}
