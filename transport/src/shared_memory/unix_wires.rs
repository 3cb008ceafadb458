//! The sockets of a session over shared memory, beside its connection.
#![forbid(unsafe_code)]

use std::{os::fd::OwnedFd, sync::Arc};

use super::{Bells, FdSocket};

/// The Unix sockets of one end of a session over shared memory.
#[derive(Debug)]
pub struct UnixWires {
    /// The socket that passes descriptors.
    pub socket: FdSocket,
    /// The bells that wake the engines.
    pub bells: Arc<Bells>,
    /// True if the peer's process runs as this process's user.
    pub is_same_user: bool,
}

impl UnixWires {
    /// Takes over two connected `SOCK_SEQPACKET` Unix sockets to one peer, one for descriptors and
    /// one for rings. No other process may have descriptors of them.
    #[must_use]
    pub fn new(control: OwnedFd, bells: OwnedFd, is_same_user: bool) -> Self {
        Self {
            socket: FdSocket::new(control),
            bells: Arc::new(Bells::new(bells)),
            is_same_user,
        }
    }
}
