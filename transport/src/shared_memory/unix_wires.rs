//! Sockets that a session over shared memory has beside its connection.
#![forbid(unsafe_code)]

use std::{os::fd::OwnedFd, sync::Arc};

use super::{Bells, FdSocket};

/// The Unix sockets of one end of a session over shared memory.
#[derive(Debug)]
pub struct UnixWires {
    /// Passes descriptors.
    pub socket: FdSocket,
    /// Wake the engines.
    pub bells: Arc<Bells>,
}

impl UnixWires {
    /// Takes over two connected `SOCK_SEQPACKET` Unix sockets to one peer, of which no other
    /// process has a descriptor: one for descriptors, one to ring.
    #[must_use]
    pub fn new(control: OwnedFd, bells: OwnedFd) -> Self {
        Self {
            socket: FdSocket::new(control),
            bells: Arc::new(Bells::new(bells)),
        }
    }
}
