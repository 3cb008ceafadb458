//! Waiting for a node's events.

use std::task::{Poll, Waker};

use ibex_base::fork;
use ibex_ring::parking::{Patience, Ticket};

use super::Runtime;
use crate::node::NodeEvent;

impl Runtime {
    /// Returns the next event, and waits for it as long as `patience` says. `None` if there is none
    /// by then, or if the node was closed and no event will come.
    pub fn next_event(&self, patience: Patience) -> Option<NodeEvent> {
        if fork::is_child() {
            return None;
        }
        let deadline = match patience {
            Patience::None => {
                self.poll_all();
                return self.events.check().flatten();
            }
            Patience::Until(deadline) => deadline,
        };
        let found = self.wait_at(&self.events.waiters, deadline, || self.events.check());
        found.ok().flatten()
    }

    /// Returns the next event, for a task; `None` if the node was closed and no event will come.
    /// While it is pending, `waker` is left under `held`.
    pub fn poll_event(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<Option<NodeEvent>> {
        if fork::is_child() {
            return Poll::Ready(None);
        }
        self.poll_at(&self.events.waiters, held, waker, || self.events.check())
    }

    /// Takes back the waker that [`poll_event`](Self::poll_event) left.
    pub fn leave_events(&self, held: &mut Option<Ticket>) {
        self.events.waiters.leave(held);
    }

    /// Returns the number of events that were dropped because the program did not take them.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        if fork::is_child() {
            return 0;
        }
        self.events.dropped()
    }
}
