//! The queue pairs of an RDMA port that belong to no session yet.
//!
//! A queue pair takes receives from the start, and its peer may send as soon as it has learned that
//! this end is connected. That is before the local engine has made a session for the queue pair.
//! Meanwhile the engine polls for other sessions, and finds the arrivals. So an engine has to
//! distinguish queue pairs that will have a session from those that had one. It keeps arrivals for
//! the former; of arrivals for the latter it only reuses the buffer.
//!
//! Rules:
//! 1. A queue pair is listed from before it is connected until its session is made or it is
//!    dropped.
//! 2. A device reuses the number of a queue pair that is gone; a ticket is never reused.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::rdma_port::new_number;
use ibex_base::sync::lock;

/// The list of queue pairs without a session, by queue pair number.
#[derive(Debug, Default)]
pub(crate) struct PendingPairs {
    tickets: Mutex<BTreeMap<u32, u64>>,
}

/// A queue pair's entry in the list; dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct ListedPair {
    list: Arc<PendingPairs>,
    queue_pair: u32,
    ticket: u64,
}

impl PendingPairs {
    /// Lists a queue pair.
    pub(super) fn list(self: &Arc<Self>, queue_pair: u32) -> ListedPair {
        let ticket = new_number();
        self.tickets().insert(queue_pair, ticket);
        ListedPair {
            list: self.clone(),
            queue_pair,
            ticket,
        }
    }

    /// Returns the ticket of a listed queue pair.
    pub(crate) fn ticket(&self, queue_pair: u32) -> Option<u64> {
        self.tickets().get(&queue_pair).copied()
    }

    fn tickets(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        lock(&self.tickets)
    }
}

impl ListedPair {
    /// Returns the ticket's number, which is never reused.
    pub(crate) fn get(&self) -> u64 {
        self.ticket
    }
}

impl Drop for ListedPair {
    fn drop(&mut self) {
        let mut tickets = self.list.tickets();
        // The number may already belong to another queue pair, whose ticket is then in the list.
        if tickets.get(&self.queue_pair) == Some(&self.ticket) {
            tickets.remove(&self.queue_pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_lasts_as_long_as_it_lives_and_leaves_a_later_one_alone() {
        let list = Arc::new(PendingPairs::default());
        let first = list.list(7);
        assert_eq!(list.ticket(7), Some(first.get()));
        assert_eq!(list.ticket(8), None);
        // The device reused the number before the first ticket was dropped.
        let second = list.list(7);
        assert_ne!(first.get(), second.get());
        drop(first);
        assert_eq!(list.ticket(7), Some(second.get()));
        drop(second);
        assert_eq!(list.ticket(7), None);
    }
}
