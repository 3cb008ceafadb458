//! Memory that a peer was granted ahead, to write messages to it, one after the other.

use std::{ops::Deref, ptr::NonNull};

use ibex_protocol::transfer::{
    eager_write::{LANDING_BYTES, LANDING_HEAD_BYTES},
    rendezvous::RemoteMemory,
};
use ibex_ring::memory::{LargeBuffer, LargeLease, MemoryError};

use crate::{rdma::LandingPlace, session::route::Route};

/// A block of memory that the peer may write to. Dropped, its memory goes back to the pool of what
/// peers are granted.
#[derive(Debug)]
pub(crate) struct GrantedBlock {
    lease: LargeLease,
    place: LandingPlace,
}

impl GrantedBlock {
    /// Registers the memory, unless it is already. Takes long: off the turn.
    pub(crate) fn register(
        place: LandingPlace,
        mut lease: LargeLease,
    ) -> Result<(Self, RemoteMemory), MemoryError> {
        let memory = place.register(&mut lease, LANDING_BYTES)?;
        Ok((Self { lease, place }, memory))
    }

    /// Returns whether the peer can write to the block where `route` leads now. The session may
    /// have left the device with which the block is registered.
    pub(crate) fn is_granted_on(&self, route: &Route) -> bool {
        let site = route.granting_site();
        site.is_some_and(|site| self.place.is_of(&site))
    }

    /// Returns the address that messages are written to.
    pub(crate) fn message(&self) -> NonNull<u8> {
        // SAFETY: the head is at the beginning of the block's bytes.
        unsafe { self.lease.base().add(LANDING_HEAD_BYTES) }
    }

    /// Returns a copy of the head: the peer may write there again, whatever it should.
    pub(crate) fn head(&self) -> [u8; LANDING_HEAD_BYTES] {
        // SAFETY: the head is at the beginning of the block's bytes, which come initialised
        // from the kernel. It is read once, as bytes that may be anything.
        unsafe { self.lease.base().cast().read_volatile() }
    }

    /// Returns the memory, which goes back to no pool then.
    pub(crate) fn withdraw(self) -> LargeBuffer {
        self.lease.withdraw()
    }
}

impl Deref for GrantedBlock {
    type Target = LargeBuffer;

    fn deref(&self) -> &LargeBuffer {
        &self.lease
    }
}
