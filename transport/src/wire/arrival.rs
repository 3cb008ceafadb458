//! Frames where they arrived, and the reasons to refuse one.

use std::ptr::NonNull;

use ibex_protocol::{format::frame_check::DamagedFrame, session::PeerMisbehaved};
use ibex_ring::memory::{BlockLease, BufferLease, MemoryError};

/// Records of one frame where they arrived.
pub(crate) struct Arrived<M> {
    /// The first record.
    pub(crate) base: NonNull<u8>,
    /// The bytes of all records.
    pub(crate) bytes: usize,
    /// The sequence number of the last record.
    pub(crate) last_sequence: u64,
    /// When they arrived, in nanoseconds since 1970; 0 where nobody said.
    pub(crate) time: u64,
    /// The memory that they lie in. It becomes a [`FrameMemory`] where it is handed on: before,
    /// it would be moved from place to place for the sake of its drop.
    pub(crate) memory: M,
    /// How often the arrival memory was filled anew.
    pub(crate) refills: u64,
    /// Bytes of a shared block that the frame takes: 0 where each frame has a buffer of its own.
    pub(crate) of_block: usize,
    /// There is too little of that memory left to be held on to.
    pub(crate) is_scarce: bool,
}

/// The memory that keeps a frame's bytes as they are.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its drop")]
pub(crate) enum FrameMemory {
    /// They lie in a block among others.
    Block(BlockLease),
    /// They lie in a receive buffer of their own.
    Buffer(BufferLease),
}

impl From<BlockLease> for FrameMemory {
    #[inline]
    fn from(lease: BlockLease) -> Self {
        Self::Block(lease)
    }
}

impl From<BufferLease> for FrameMemory {
    #[inline]
    fn from(lease: BufferLease) -> Self {
        Self::Buffer(lease)
    }
}

/// The reason why a frame could not be handed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("it broke the protocol: {0}")]
    Peer(#[from] PeerMisbehaved),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("bytes were damaged on the way from it: {0}")]
    Damage(#[from] DamagedFrame),
}
