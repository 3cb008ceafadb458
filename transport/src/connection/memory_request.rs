//! Requests for memory that takes too long for a turn to get.

use std::sync::Arc;

use ibex_ring::memory::{Mapping, MemoryUse};

use crate::session::SessionShared;

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

impl MemoryWanted {
    /// Gets the memory and gives it to the session, if that is still there.
    pub(crate) fn provide(self) {
        let Self {
            session,
            end,
            purpose,
        } = self;
        if session.event_loop.on_link(session.id, |_, _| ()).is_none() {
            return;
        }
        match purpose {
            Purpose::Large { sequence, length } => {
                let memory = session.lease_for_arrival(length as usize);
                session.event_loop.on_link(session.id, |link, _| {
                    let core = &mut link.core;
                    let receivers = &mut core.ends.receivers;
                    receivers.large_memory(end, sequence, memory, &mut core.common);
                });
            }
            Purpose::More {
                sequence,
                memory,
                from,
                to,
            } => {
                let (from, end_at) = (from as usize, to as usize);
                let populated = memory.populate_more(MemoryUse::LargeMessage, from, end_at);
                session.event_loop.on_link(session.id, |link, _| {
                    let core = &mut link.core;
                    let receivers = &mut core.ends.receivers;
                    let common = &mut core.common;
                    receivers.large_memory_grew(end, sequence, to, populated, common);
                });
            }
            Purpose::Landings => {
                let blocks = session.lease_landings();
                session.event_loop.on_link(session.id, |link, _| {
                    let core = &mut link.core;
                    let receivers = &core.ends.receivers;
                    core.grants.grant(end, blocks, receivers, &mut core.common);
                });
            }
        }
    }
}
