//! Places for blocks that peers are granted ahead.

use std::sync::{Arc, atomic::Ordering};

use ibex_protocol::transfer::rendezvous::RemoteMemory;
use ibex_ring::memory::{LargeLease, MemoryError};

use super::rdma_port::RdmaPort;

/// A place for one of the blocks that an RDMA port may grant.
#[derive(Debug)]
pub(crate) struct EagerBlockPlace(Arc<RdmaPort>);

impl EagerBlockPlace {
    /// Takes a place; `None` if the RDMA port has granted as many as it may.
    pub(crate) fn take(rdma_port: &Arc<RdmaPort>) -> Option<Self> {
        let most = rdma_port.settings().eager_blocks;
        let one_more = |taken: u32| (taken < most).then_some(taken + 1);
        // Relaxed, because the number only guards a sum and orders no other access.
        let taken =
            rdma_port
                .eager_blocks
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(rdma_port.clone()))
    }

    /// Registers the memory of a block, unless it is registered already. This takes long and is
    /// done outside the turn.
    pub(crate) fn register(
        &self,
        lease: &mut LargeLease,
        bytes: usize,
    ) -> Result<RemoteMemory, MemoryError> {
        self.0.register_grant(lease, bytes)?;
        let memory = self.0.granted_memory(lease, bytes);
        Ok(memory.expect("it has just been registered"))
    }

    /// Returns whether the place belongs to this RDMA port.
    pub(crate) fn is_of(&self, rdma_port: &Arc<RdmaPort>) -> bool {
        Arc::ptr_eq(&self.0, rdma_port)
    }
}

impl Drop for EagerBlockPlace {
    fn drop(&mut self) {
        self.0.eager_blocks.fetch_sub(1, Ordering::Relaxed);
    }
}
