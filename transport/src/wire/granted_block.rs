//! Memory that a peer was granted ahead and writes messages to, one after the other.

use std::{ops::Deref, ptr::NonNull};

use ibex_protocol::transfer::{
    eager_write::{EAGER_BLOCK_BYTES, EAGER_BLOCK_HEAD_BYTES},
    rendezvous::RemoteMemory,
};
use ibex_ring::memory::{LargeBuffer, LargeLease, MemoryError};

use crate::{rdma::EagerBlockPlace, session::frame_path::FramePath};

/// A block of memory that the peer may write to. Dropping the block returns its memory to the pool
/// of memory for peers.
#[derive(Debug)]
pub(crate) struct GrantedBlock {
    lease: LargeLease,
    place: EagerBlockPlace,
}

impl GrantedBlock {
    /// Registers the memory, unless it is registered already. This takes long and is done outside
    /// the turn.
    pub(crate) fn register(
        place: EagerBlockPlace,
        mut lease: LargeLease,
    ) -> Result<(Self, RemoteMemory), MemoryError> {
        let memory = place.register(&mut lease, EAGER_BLOCK_BYTES)?;
        Ok((Self { lease, place }, memory))
    }

    /// Returns whether the peer can write to the block over the current `path`. The session may
    /// have left the device with which the block is registered.
    pub(crate) fn is_granted_on(&self, path: &FramePath) -> bool {
        let rdma_port = path.granting_port();
        rdma_port.is_some_and(|rdma_port| self.place.is_of(&rdma_port))
    }

    /// Returns the address that messages are written to.
    pub(crate) fn message(&self) -> NonNull<u8> {
        // SAFETY: the head is at the beginning of the block's bytes.
        unsafe { self.lease.base().add(EAGER_BLOCK_HEAD_BYTES) }
    }

    /// Returns a copy of the head, because a misbehaving peer may overwrite it at any time.
    pub(crate) fn head(&self) -> [u8; EAGER_BLOCK_HEAD_BYTES] {
        // SAFETY: the head is at the beginning of the block's bytes, which come initialised from
        // the kernel. It is read once, as bytes for which any value is valid.
        unsafe { self.lease.base().cast().read_volatile() }
    }

    /// Takes the memory out, which then returns to no pool.
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
