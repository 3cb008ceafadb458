//! The next connection of a session.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::TcpStream;

use ibex_base::Address;
use ibex_base::tls::TlsConnection;

use super::Sockets;
use crate::fabric::FabricKind;
use crate::handshake::ResumedSession;
use crate::verbs::VerbsPair;

/// The next connection of a session: both ends have shown that they have its secret.
///
/// The acceptor's connection may be one of several, or belong to a session that has ended
/// meanwhile. Compare `epoch` with the session's once more before using it, and drop it unless it
/// is higher.
pub struct ResumedConnection {
    /// The session's control connection from here on: non-blocking, `TCP_NODELAY` and keepalive
    /// set, everything of the handshake read and written.
    pub stream: TcpStream,
    /// Bytes that were read behind the handshake, to be taken before any from `stream`.
    pub leftover: Vec<u8>,
    /// The connection's TLS, where nodes are authenticated. Everything that follows from `stream`
    /// is then sealed.
    pub tls: Option<Box<dyn TlsConnection>>,
    /// The name of the session.
    pub session_id: [u8; 16],
    /// The epoch that begins.
    pub epoch: u64,
    /// The fabric that is to carry the data.
    pub fabric: FabricKind,
    /// For verbs: a queue pair that is connected to the peer's, which can receive.
    pub verbs: Option<Box<dyn VerbsPair>>,
    /// The address that the peer connected from, or was found at.
    pub address: Address,
    /// True at the end that connected.
    pub is_dialer: bool,
}

impl ResumedConnection {
    pub(crate) fn new(
        session: ResumedSession,
        sockets: Sockets,
        is_dialer: bool,
    ) -> ResumedConnection {
        ResumedConnection {
            stream: sockets.stream,
            leftover: sockets.leftover,
            tls: sockets.tls,
            session_id: session.session_id,
            epoch: session.epoch,
            fabric: session.fabric,
            verbs: sockets.verbs,
            address: sockets.address,
            is_dialer,
        }
    }
}

/// Omits the session's name, which is half of what resumes it.
impl fmt::Debug for ResumedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumedConnection")
            .field("address", &self.address)
            .field("epoch", &self.epoch)
            .field("fabric", &self.fabric)
            .field("is_dialer", &self.is_dialer)
            .finish_non_exhaustive()
    }
}
