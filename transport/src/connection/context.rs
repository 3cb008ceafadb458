//! Work that a turn leaves for after the engine's lock.

use std::{any::Any, sync::Arc};

use ibex_ring::parking::Wakers;

use crate::{
    connection::{MemoryWanted, Redialing},
    rdma::Site,
    runtime::{EventLoop, NodeState},
};

/// The work that a turn collects for after the lock.
pub(crate) struct Context<'a> {
    pub(crate) event_loop: &'a EventLoop,
    pub(crate) wakers: Wakers,
    pub(crate) wanted: Vec<MemoryWanted>,
    /// Sites whose devices may be gone; to ask takes long.
    pub(crate) unsure_sites: Vec<Arc<Site>>,
    /// Sessions whose peers are to be dialed again.
    pub(crate) redialings: Vec<Redialing>,
    /// Memory that is given back; unmapping takes long.
    pub(crate) leftovers: Vec<Box<dyn Any>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(event_loop: &'a EventLoop) -> Self {
        Self {
            event_loop,
            wakers: Wakers::new(),
            wanted: Vec::new(),
            unsure_sites: Vec::new(),
            redialings: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// Returns what the engine shares with the node's others.
    pub(crate) fn node(&self) -> &'a NodeState {
        &self.event_loop.node
    }

    /// Returns whether nothing is to be done after the lock.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            event_loop: _,
            wakers,
            wanted,
            unsure_sites,
            redialings,
            leftovers,
        } = self;
        wakers.is_empty()
            && wanted.is_empty()
            && unsure_sites.is_empty()
            && redialings.is_empty()
            && leftovers.is_empty()
    }

    /// Returns whether nothing was ever put in, as in nearly every turn.
    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.wakers.is_untouched()
            && self.wanted.capacity() == 0
            && self.unsure_sites.capacity() == 0
            && self.redialings.capacity() == 0
            && self.leftovers.capacity() == 0
    }
}
