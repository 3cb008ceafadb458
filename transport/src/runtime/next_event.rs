//! Waiting for a node's events.

use ibex_base::fork;
use ibex_ring::parking::Patience;

use super::{Looks, Runtime};
use crate::node::Event;

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
