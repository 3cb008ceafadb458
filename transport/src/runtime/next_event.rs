//! Waiting for a node's events, and telling its engine of what handles have noticed.

use std::time::Instant;

use ibex_base::fork;
use ibex_ring::parking::Patience;

use super::{Looks, Runtime};
use crate::{
    connection::Connection,
    node::{Event, What},
    session::SessionShared,
};

impl Runtime {
    /// The next event, waiting as long as `patience` says; `None` if there is none by then, or
    /// there will be none as the node was closed.
    pub fn next_event(&self, patience: Patience) -> Option<Event> {
        if fork::is_child() {
            return None;
        }
        let deadline = match patience {
            Patience::None | Patience::Glance => {
                self.look_around();
                return self.events.look().flatten();
            }
            Patience::Until(deadline) => deadline,
        };
        let look = || self.events.look();
        self.wait(&self.events.waiters, deadline, Looks::Socket, look)
            .ok()
            .flatten()
    }

    /// Events that were dropped because nobody took them.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        if fork::is_child() {
            return 0;
        }
        self.events.dropped()
    }
}

impl SessionShared {
    /// Has the engine look whether a task waits for room for long.
    pub(crate) fn watch_stalls(&self) {
        self.watch(|link| link.core.common.watch_stalls());
    }

    /// Has the engine look at `due` whether an end that somebody waits for is open.
    pub(crate) fn watch_opening(&self, due: Instant) {
        self.watch(|link| link.core.common.watch_opening(due));
    }

    /// Sets a timer of the link; `set` says whether that changes when somebody is to look next.
    pub(crate) fn watch(&self, set: impl FnOnce(&mut Connection) -> bool) {
        if self.event_loop.on_link(self.id, |link, _| set(link)) == Some(true) {
            // Whoever sleeps in the epoll set has another deadline.
            self.event_loop.bell().wake();
        }
    }

    /// Tells of something that a handle has noticed, unless the session is over.
    pub(crate) fn tell(&self, what: What) {
        self.event_loop.on_link(self.id, |link, context| {
            link.core.common.tell(what, context);
        });
    }
}
