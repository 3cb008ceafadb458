//! Parts of the engine that a connection uses while it is turned.

use std::{os::fd::OwnedFd, sync::Arc};

use ibex_ring::memory::BlockPool;

use super::{Reactor, stream::outbound::Lists};

/// Parts of the engine that connections use, one after the other, while it turns.
pub(crate) struct Tools {
    pub(crate) blocks: BlockPool,
    pub(crate) compact_blocks: BlockPool,
    pub(crate) lists: Lists,
    pub(crate) epoll: Arc<OwnedFd>,
    /// Watches connections in place of the epoll set, where tasks drive the node and no thread has
    /// waited or polled.
    pub(crate) reactor: Option<Reactor>,
    /// A session has used up its share of a turn, and more of its data has arrived.
    pub(crate) share_is_spent: bool,
}
