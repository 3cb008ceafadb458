//! Requests for memory whose allocation takes too long for a turn.

use std::sync::Arc;

use ibex_ring::memory::Mapping;

use crate::{node::SessionShared, wire::LargeWanted};

/// Memory that a receiving end needs. It is mapped and populated outside the turn.
pub(crate) struct MemoryWanted {
    pub(crate) session: Arc<SessionShared>,
    pub(crate) end: u32,
    pub(crate) purpose: MemoryPurpose,
}

/// The purpose of requested memory.
pub(crate) enum MemoryPurpose {
    /// A large message that was announced.
    Large(LargeWanted),
    /// More memory for a message that is arriving: these bytes of it.
    More {
        sequence: u64,
        memory: Arc<Mapping>,
        from: u64,
        to: u64,
    },
    /// Future messages of medium size.
    EagerBlocks,
}
