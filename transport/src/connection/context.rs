//! Work that a turn leaves for after the engine's lock.

use std::{any::Any, sync::Arc};

use ibex_ring::parking::{Bell, Wakers};

use crate::{
    connection::{MemoryWanted, Redialing},
    node::{NodeState, SessionShared},
    rdma::Site,
};

/// The loop that turns an engine, as a turn sees it. What it is asked is rare.
pub(crate) trait Surroundings {
    /// Returns the state that all engines of the node share.
    fn node(&self) -> &NodeState;

    /// Returns the bell that wakes whoever sleeps for the engine.
    fn bell(&self) -> &'static Bell;

    /// Returns whether what a leader sleeps on may be taken: not while one does, or it sleeps on.
    /// For whoever has the engine's lock.
    fn may_drain(&self) -> bool;

    /// Forgets the bell's rings, unless they are for a leader that sleeps.
    fn drain_bell(&self);

    /// Tells places that wait for sessions of any peer that one has come.
    fn session_came(&self, session: &Arc<SessionShared>, wakers: &mut Wakers);
}

/// The work that a turn collects for after the lock.
pub(crate) struct Context<'a> {
    pub(crate) surroundings: &'a dyn Surroundings,
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
    pub(crate) fn new(surroundings: &'a dyn Surroundings) -> Self {
        Self {
            surroundings,
            wakers: Wakers::new(),
            wanted: Vec::new(),
            unsure_sites: Vec::new(),
            redialings: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// Returns what the engine shares with the node's others.
    pub(crate) fn node(&self) -> &'a NodeState {
        self.surroundings.node()
    }

    /// Returns whether nothing is to be done after the lock.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            surroundings: _,
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
