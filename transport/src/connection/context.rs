//! Work that a turn leaves until the engine's lock is released.

use std::{any::Any, sync::Arc};

use ibex_ring::parking::{Bell, Wakers};

use crate::{
    connection::MemoryWanted,
    node::{NodeState, SessionShared},
    rdma::RdmaPort,
};

/// The loop that turns an engine, as a turn sees it. Its methods are called rarely.
pub(crate) trait Surroundings {
    /// Returns the state that all engines of the node share.
    fn node(&self) -> &NodeState;

    /// Returns the bell that wakes the thread that sleeps on the engine's behalf.
    fn bell(&self) -> &'static Bell;

    /// Returns whether the events that a leader sleeps on may be taken. They may not while a leader
    /// sleeps, because it would then sleep on. The caller holds the engine's lock.
    fn may_drain(&self) -> bool;

    /// Discards the bell's rings, unless they are for a sleeping leader.
    fn drain_bell(&self);

    /// Announces a new session to the waiters for sessions of any peer.
    fn session_came(&self, session: &Arc<SessionShared>, wakers: &mut Wakers);

    /// Announces to the publisher of this name that a peer has opened a receiving end which has no
    /// counterpart here. The publisher finds the changes before any later frame goes to the peer.
    fn peer_subscribes(&self, session: &Arc<SessionShared>, name: &str, wakers: &mut Wakers);
}

/// The work that a turn collects until the engine's lock is released.
pub(crate) struct Context<'a> {
    pub(crate) surroundings: &'a dyn Surroundings,
    pub(crate) wakers: Wakers,
    pub(crate) wanted: Vec<MemoryWanted>,
    /// RDMA ports whose devices may be gone; asking the kernel takes long.
    pub(crate) unsure_ports: Vec<Arc<RdmaPort>>,
    /// What is dropped behind the turn, because it frees or deregisters memory, which takes long, or
    /// may run code of the program.
    pub(crate) leftovers: Vec<Box<dyn Any>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(surroundings: &'a dyn Surroundings) -> Self {
        Self {
            surroundings,
            wakers: Wakers::new(),
            wanted: Vec::new(),
            unsure_ports: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// Returns the state that all engines of the node share.
    pub(crate) fn node(&self) -> &'a NodeState {
        self.surroundings.node()
    }

    /// Leaves a value to be dropped behind the turn.
    pub(crate) fn leave(&mut self, leftover: impl Any) {
        self.leftovers.push(Box::new(leftover));
    }

    /// Returns whether no work is left to do after the lock.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            surroundings: _,
            wakers,
            wanted,
            unsure_ports,
            leftovers,
        } = self;
        wakers.is_empty() && wanted.is_empty() && unsure_ports.is_empty() && leftovers.is_empty()
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
