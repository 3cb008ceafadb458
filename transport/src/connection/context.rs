//! Work that a turn leaves until the engine's lock is released.

use std::{any::Any, sync::Arc};

use ibex_ring::parking::{Bell, Wakers};

use crate::{
    connection::MemoryWanted,
    node::{Gatherings, NodeState},
    rdma::RdmaPort,
};

/// What a turn needs of its engine's loop, and the work that it collects until the engine's lock is
/// released.
pub(crate) struct Context<'a> {
    /// The state that all engines of the node share.
    pub(crate) node: &'a Arc<NodeState>,
    /// The bell that wakes the thread that sleeps on the engine's behalf.
    pub(crate) bell: &'static Bell,
    /// The events that a leader sleeps on may be taken. They may not while a leader sleeps, because
    /// it would then sleep on.
    pub(crate) may_drain: bool,
    /// The waiters for sessions of any peer, and the publishers that wait for subscribers.
    pub(crate) gatherings: &'a Gatherings,

    pub(crate) wakers: Wakers,
    pub(crate) wanted: Vec<MemoryWanted>,
    /// RDMA ports whose devices may be gone; asking the kernel takes long.
    pub(crate) unsure_ports: Vec<Arc<RdmaPort>>,
    /// What is dropped behind the turn, because it frees or deregisters memory, which takes long, or
    /// may run code of the program.
    pub(crate) leftovers: Vec<Box<dyn Any>>,
}

impl<'a> Context<'a> {
    /// Makes the context of a turn, under the engine's lock.
    pub(crate) fn new(
        node: &'a Arc<NodeState>,
        bell: &'static Bell,
        may_drain: bool,
        gatherings: &'a Gatherings,
    ) -> Self {
        Self {
            node,
            bell,
            may_drain,
            gatherings,
            wakers: Wakers::new(),
            wanted: Vec::new(),
            unsure_ports: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// Leaves a value to be dropped behind the turn.
    pub(crate) fn leave(&mut self, leftover: impl Any) {
        self.leftovers.push(Box::new(leftover));
    }

    /// Returns whether no work is left to do after the lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
            && self.wanted.is_empty()
            && self.unsure_ports.is_empty()
            && self.leftovers.is_empty()
    }

    /// Returns whether no work was ever collected, as in nearly every turn.
    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.wakers.is_untouched()
            && self.wanted.capacity() == 0
            && self.unsure_ports.capacity() == 0
            && self.leftovers.capacity() == 0
    }
}
