//! News for the keeper, and its sleep until there is some.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Wake,
    time::{Duration, Instant},
};

use ibex_base::sync::lock;

use crate::discovery::DiscoveryError;

/// News for the keeper. A thread that leaves news never waits for the keeper.
#[derive(Default)]
pub(super) struct Inbox {
    news: Mutex<VecDeque<News>>,
    /// Wakes the keeper: there is news, or it is to stop.
    keeper: Condvar,
    /// The thread that asks the discovery is to stop.
    discovery: Condvar,
    is_stopped: AtomicBool,
}

pub(super) enum News {
    /// The discovery has answered.
    Found(Vec<String>),
    /// The discovery has failed, and is asked again then.
    NotFound(DiscoveryError, Instant),
    /// The attempt at this address has an outcome.
    Dialed(String),
    /// The session with this address is over, or its peer drains.
    Changed(String),
    /// The node was closed.
    Closed,
}

impl Inbox {
    pub(super) fn tell(&self, news: News) {
        let mut queue = self.lock();
        if self.is_stopped() {
            return;
        }
        queue.push_back(news);
        drop(queue);
        self.keeper.notify_one();
    }

    /// Returns the next news; `None` when `due` has come, or at once after the stop.
    pub(super) fn next(&self, due: Option<Instant>) -> Option<News> {
        let mut queue = self.lock();
        loop {
            if self.is_stopped() {
                return None;
            }
            if let Some(news) = queue.pop_front() {
                return Some(news);
            }
            queue = match due {
                None => wait(&self.keeper, queue),
                Some(due) => {
                    let left = due.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    wait_for(&self.keeper, queue, left)
                }
            };
        }
    }

    /// Waits for `pause`, or until the inbox is stopped. Returns whether the keeper goes on.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now().checked_add(pause);
        let mut queue = self.lock();
        while !self.is_stopped() {
            queue = match until {
                None => wait(&self.discovery, queue),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return true;
                    }
                    wait_for(&self.discovery, queue, left)
                }
            };
        }
        false
    }

    pub(super) fn stop(&self) {
        let mut queue = self.lock();
        self.is_stopped.store(true, Ordering::Relaxed);
        queue.clear();
        drop(queue);
        self.keeper.notify_all();
        self.discovery.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<News>> {
        lock(&self.news)
    }
}

fn wait<'a, T>(condition: &Condvar, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(held).unwrap_or_else(PoisonError::into_inner)
}

fn wait_for<'a, T>(
    condition: &Condvar,
    held: MutexGuard<'a, T>,
    left: Duration,
) -> MutexGuard<'a, T> {
    let waited = condition.wait_timeout(held, left);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// The waker that is left at the session with an address.
pub(super) struct SessionWaker {
    pub(super) inbox: Weak<Inbox>,
    pub(super) address: String,
}

impl Wake for SessionWaker {
    fn wake(self: Arc<Self>) {
        if let Some(inbox) = self.inbox.upgrade() {
            inbox.tell(News::Changed(self.address.clone()));
        }
    }
}

/// The waker that is left at the attempt to reach an address.
pub(super) struct DialWaker {
    pub(super) inbox: Weak<Inbox>,
    pub(super) address: String,
}

impl Wake for DialWaker {
    fn wake(self: Arc<Self>) {
        if let Some(inbox) = self.inbox.upgrade() {
            inbox.tell(News::Dialed(self.address.clone()));
        }
    }
}

/// The waker that is left at the node.
pub(super) struct CloseWaker(pub(super) Weak<Inbox>);

impl Wake for CloseWaker {
    fn wake(self: Arc<Self>) {
        if let Some(inbox) = self.0.upgrade() {
            inbox.tell(News::Closed);
        }
    }
}
