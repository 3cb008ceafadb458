//! The Unix sockets of a session over shared memory, and how they are closed.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::share_with::ShareWith;

/// How a node closes its Unix sockets.
///
/// The peer may have put descriptors into such a socket. Closing the socket closes them, and the
/// peer may have made them so that this sleeps. The default closes sockets where they are dropped.
#[derive(Clone, Copy, Debug)]
pub struct UnixClosing {
    /// Closes a socket, connected or listening. The code that drives handshakes calls this, so it
    /// must not wait.
    pub close: fn(OwnedFd),
    /// Returns true if so many sockets wait to be closed that there should be no more. Then the
    /// ends choose another fabric than shared memory.
    pub is_held_up: fn() -> bool,
}

/// The way in which a node meets others at Unix sockets, to share memory.
#[derive(Clone, Debug, Default)]
pub struct UnixSettings {
    /// The other users with whose processes the node shares memory. Default: [`ShareWith::Nobody`].
    pub share_with: Arc<ShareWith>,
    /// The directory in which it meets nodes of other network namespaces. Default: none, and then it
    /// shares no memory with them.
    pub directory: Option<Arc<Path>>,
    /// Closes Unix sockets that a peer has put something into. Default: [`UnixClosing::default`].
    pub closing: UnixClosing,
}

/// A Unix socket of this node's, closed by its [`UnixClosing`].
#[derive(Debug)]
pub struct UnixSocket {
    /// The socket, until it is dropped or taken out.
    socket: Option<OwnedFd>,
    close: fn(OwnedFd),
}

/// The two connected, non-blocking `SOCK_SEQPACKET` sockets of a session. This process made
/// or accepted both, and no other has a descriptor of this end.
#[derive(Debug)]
pub struct UnixSockets {
    /// Passes descriptors.
    pub control: UnixSocket,
    /// Wakes the peer; carries nothing else.
    pub bells: UnixSocket,
    /// True if the peer's process runs as this process's user, by the kernel's word.
    pub is_same_user: bool,
}

impl UnixClosing {
    pub(crate) fn guard(self, socket: OwnedFd) -> UnixSocket {
        UnixSocket {
            socket: Some(socket),
            close: self.close,
        }
    }
}

impl Default for UnixClosing {
    fn default() -> UnixClosing {
        UnixClosing {
            close: drop,
            is_held_up: || false,
        }
    }
}

impl UnixSocket {
    /// Returns the socket itself, which the caller closes from here on.
    #[must_use]
    pub fn into_fd(mut self) -> OwnedFd {
        self.socket.take().expect("it is there until dropped")
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket
            .as_ref()
            .expect("it is there until dropped")
            .as_fd()
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            (self.close)(socket);
        }
    }
}
