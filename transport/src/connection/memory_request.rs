//! Requests for memory that takes too long for a turn to get.

use std::sync::Arc;

use ibex_ring::memory::Mapping;

use crate::node::SessionShared;

/// Memory that a receiving end needs; it is mapped and populated off the turn.
pub(crate) struct MemoryWanted {
    pub(crate) session: Arc<SessionShared>,
    pub(crate) end: u32,
    pub(crate) purpose: Purpose,
}

/// The purpose that memory is wanted for.
pub(crate) enum Purpose {
    /// A large message that was announced.
    Large { sequence: u64, length: u64 },
    /// More of one that is coming: these bytes of its memory.
    More {
        sequence: u64,
        memory: Arc<Mapping>,
        from: u64,
        to: u64,
    },
    /// Messages of medium size to come.
    Landings,
}
