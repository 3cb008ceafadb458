//! Waiting for a node's events.

use ibex_base::fork;
use ibex_ring::parking::Patience;

use super::{Looks, Runtime};
use crate::node::Event;

impl Runtime {
    /// Returns the next event, and waits for it as long as `patience` says. `None` if there is none
    /// by then, or if the node was closed and no event will come.
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

    /// Returns the number of events that were dropped because the program did not take them.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        if fork::is_child() {
            return 0;
        }
        self.events.dropped()
    }
}
