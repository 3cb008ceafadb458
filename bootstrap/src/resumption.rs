//! A session whose wires broke, and the connection that is its next.
//!
//! Rules: both ends prove that they have the session's secret, each in its own role and over
//! both Hellos of this connection, so that no proof serves twice; each connection of a session
//! begins an epoch, and epochs grow, so that of two connections the later one counts at both
//! ends.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{SocketAddr, TcpStream};

use crate::established::Sockets;
use crate::fabric::FabricKind;
use crate::handshake::ResumedSession;
use crate::identity::{Incarnation, NodeIdentity, Secret};
use crate::verbs::VerbsPair;

/// What a dialer needs to go on with a session.
#[derive(Clone, Debug)]
pub struct Ticket {
    // Which session.
    /// [`Established::session_id`](crate::Established::session_id).
    pub session_id: [u8; 16],
    /// [`Established::resume_secret`](crate::Established::resume_secret).
    pub secret: Secret,

    // With whom.
    /// The node that has the session.
    pub peer: NodeIdentity,
    /// The run of it.
    pub incarnation: Incarnation,

    // What is asked for.
    /// The epoch to begin: 1 or more, and one more at each attempt, as the acceptor may have
    /// begun an epoch of which the dialer never heard.
    pub epoch: u64,
    /// What is to carry the data.
    pub fabric: FabricKind,
}

/// The sessions that others may go on with.
pub trait Resumptions: fmt::Debug + Send + Sync {
    /// What is known of a session that is up or suspended; `None` for one that has ended.
    /// Where both ends of a session are this node's, it is that which accepted.
    ///
    /// Asked in a turn of the [`Acceptor`](crate::Acceptor), so it must not wait for long.
    fn find(&self, session_id: &[u8; 16]) -> Option<Resumable>;
}

/// A session that others may go on with.
#[derive(Clone, Debug)]
pub struct Resumable {
    /// Its secret.
    pub secret: Secret,
    /// The newest epoch that it has begun; 0 until it is resumed for the first time.
    pub epoch: u64,
    /// What it may go on over now.
    pub fabrics: Vec<FabricKind>,
    /// Why over nothing else, in words.
    pub reason: String,
}

impl Resumable {
    /// What keeps it from going on over `fabric`, if anything does.
    pub(crate) fn obstacle(&self, fabric: FabricKind) -> Option<String> {
        let is_among = self.fabrics.contains(&fabric);
        (!is_among).then(|| format!("over {fabric}: {}", self.reason))
    }
}

/// The next connection of a session: both ends have shown that they have its secret.
///
/// The acceptor's may be one of several, or of a session that has ended meanwhile: compare
/// `epoch` with the session's once more before it becomes the session's, and drop it unless it
/// is higher.
pub struct Resumption {
    /// The session's control connection from here on: non-blocking, `TCP_NODELAY` and keepalive
    /// set, everything of the handshake read and written.
    pub stream: TcpStream,
    /// What the peer sent behind the handshake and was read along with it, to be taken before
    /// any from `stream`.
    pub leftover: Vec<u8>,
    /// Which session.
    pub session_id: [u8; 16],
    /// The epoch that begins.
    pub epoch: u64,
    /// What is to carry the data.
    pub fabric: FabricKind,
    /// For verbs: a queue pair that is connected to the peer's, which can receive.
    pub verbs: Option<Box<dyn VerbsPair>>,
    /// Where the peer connected from, or was found.
    pub address: SocketAddr,
    /// Whether this end connected.
    pub is_dialer: bool,
}

impl Resumption {
    pub(crate) fn new(session: ResumedSession, sockets: Sockets, is_dialer: bool) -> Resumption {
        Resumption {
            stream: sockets.stream,
            leftover: sockets.leftover,
            session_id: session.session_id,
            epoch: session.epoch,
            fabric: session.fabric,
            verbs: sockets.verbs,
            address: sockets.address,
            is_dialer,
        }
    }
}

/// Without the session's name, which is half of what resumes it.
impl fmt::Debug for Resumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumption")
            .field("address", &self.address)
            .field("epoch", &self.epoch)
            .field("fabric", &self.fabric)
            .field("is_dialer", &self.is_dialer)
            .finish_non_exhaustive()
    }
}
