//! Places for blocks that peers are granted ahead.

use std::sync::{Arc, atomic::Ordering};

use ibex_protocol::transfer::rendezvous::RemoteMemory;
use ibex_ring::memory::{LargeLease, MemoryError};

use super::site::Site;

/// A place for one of the blocks that a site may grant.
#[derive(Debug)]
pub(crate) struct LandingPlace(Arc<Site>);

impl LandingPlace {
    /// Takes a place; `None` if the site has granted as many as it may.
    pub(crate) fn take(site: &Arc<Site>) -> Option<Self> {
        let most = site.settings().landing_blocks;
        let one_more = |taken: u32| (taken < most).then_some(taken + 1);
        // Relaxed, because the number only guards a sum and orders no other access.
        let taken = site
            .landings
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(site.clone()))
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

    /// Returns whether the place belongs to this site.
    pub(crate) fn is_of(&self, site: &Arc<Site>) -> bool {
        Arc::ptr_eq(&self.0, site)
    }
}

impl Drop for LandingPlace {
    fn drop(&mut self) {
        self.0.landings.fetch_sub(1, Ordering::Relaxed);
    }
}
