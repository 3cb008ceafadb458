//! A landing block: registered memory that a peer may write messages to, one after the other.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ibex_protocol::transfer::{
    eager_write::{LANDING_BYTES, LANDING_HEAD_BYTES},
    rendezvous::RemoteMemory,
};
use ibex_ring::memory::{LargeBuffer, LargeLease, MemoryError};

use super::site::Site;

/// The block. Dropped, its memory goes back to the pool of what peers are granted.
#[derive(Debug)]
pub(crate) struct LandingBlock {
    lease: LargeLease,
    place: Place,
}

/// The place of a block among those that a site may grant.
#[derive(Debug)]
pub(crate) struct Place(Arc<Site>);

impl Place {
    /// `None` if the site has granted as many as it may.
    pub(crate) fn take(site: &Arc<Site>) -> Option<Self> {
        let most = site.settings().landing_blocks;
        let one_more = |taken: u32| (taken < most).then_some(taken + 1);
        // Relaxed: it guards a sum, and nothing is read on the strength of it.
        let taken = site
            .landings
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(site.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.landings.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LandingBlock {
    /// Registers the memory, unless it is already. Takes long: off the turn.
    pub(crate) fn register(
        place: Place,
        mut lease: LargeLease,
    ) -> Result<(Self, RemoteMemory), MemoryError> {
        place.0.register_grant(&mut lease, LANDING_BYTES)?;
        let memory = place.0.granted_memory(&lease, LANDING_BYTES);
        let memory = memory.expect("it has just been registered");
        let block = Self { lease, place };
        Ok((block, memory))
    }

    /// Returns whether the block is registered with the device of this site.
    pub(crate) fn is_of(&self, site: &Arc<Site>) -> bool {
        Arc::ptr_eq(&self.place.0, site)
    }

    /// Returns the address that messages are written to.
    pub(crate) fn message(&self) -> NonNull<u8> {
        // SAFETY: the head is at the beginning of the block's bytes.
        unsafe { self.lease.base().add(LANDING_HEAD_BYTES) }
    }

    /// A copy of the head: the peer may write there again, whatever it should.
    pub(crate) fn head(&self) -> [u8; LANDING_HEAD_BYTES] {
        // SAFETY: the head is at the beginning of the block's bytes, which come initialised
        // from the kernel. It is read once, as bytes that may be anything.
        unsafe { self.lease.base().cast().read_volatile() }
    }

    /// The memory, which goes back to no pool then.
    pub(crate) fn withdraw(self) -> LargeBuffer {
        self.lease.withdraw()
    }
}

impl Deref for LandingBlock {
    type Target = LargeBuffer;

    fn deref(&self) -> &LargeBuffer {
        &self.lease
    }
}
