//! The result of a finished handshake: one connection, and what both ends agreed on.
#![forbid(unsafe_code)]

use std::net::TcpStream;
use std::ops::Deref;
use std::time::Instant;

use ibex_base::Address;
use ibex_base::tls::TlsConnection;

use crate::handshake::{Agreement, ResumedSession};
use crate::unix_sockets::UnixSockets;
use crate::verbs::VerbsPair;

/// A connection whose handshake has finished. It dereferences to what both ends
/// [agreed](Self::agreed) on.
pub struct Finished<A> {
    // The wire.
    /// The session's control connection, of TCP or of vsock: non-blocking, everything of the
    /// handshake read and written; over TCP with `TCP_NODELAY` and keepalive.
    pub stream: TcpStream,
    /// Bytes that were read behind the handshake: the first of the session, to be taken before any
    /// from `stream`.
    pub leftover: Vec<u8>,
    /// The connection's TLS, where nodes are authenticated. Everything that follows from `stream`
    /// is then sealed.
    pub tls: Option<Box<dyn TlsConnection>>,
    /// For shm: sockets to the same peer, one that passes descriptors and one that wakes. The token
    /// was presented at both and accepted, and the kernel vouches that both ends run as one user.
    pub unix: Option<UnixSockets>,
    /// For verbs: a queue pair that is connected to the same peer's, as the
    /// [`VerbsDevices`](crate::VerbsDevices) made it. The peer's can receive.
    pub verbs: Option<Box<dyn VerbsPair>>,

    // The ends.
    /// The address that the peer connected from, or was found at.
    pub address: Address,
    /// The peer's process, in this process's pid namespace and on the kernel's
    /// word (`SO_PEERCRED`). `None` without a Unix socket, and for a process
    /// that this namespace cannot see.
    pub pid: Option<u32>,
    /// The time at which this end had the connection, before the peer had sent everything. It
    /// orders two runs of one identity, in whichever order their handshakes end: a run that has
    /// ended cannot begin a handshake after the next run did and still finish it.
    pub began: Instant,
    /// True at the end that connected, which is exactly one end of a session.
    pub is_dialer: bool,

    /// The terms that both ends agreed on.
    pub agreed: A,
}

/// A connection with a new session.
pub type Established = Finished<Agreement>;

/// The next connection of a session: both ends have shown that they have its secret.
///
/// The acceptor's connection may be one of several, or belong to a session that has ended
/// meanwhile. Compare `epoch` with the session's once more before using it, and drop it unless it
/// is higher.
pub type ResumedConnection = Finished<ResumedSession>;

impl<A> Deref for Finished<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.agreed
    }
}

// Omits what was agreed on, which has the session's secrets, since the output ends in logs.
ibex_base::debug_fields! {
    [A] Finished<A>: |finished|
        address = finished.address, is_dialer = finished.is_dialer
}
