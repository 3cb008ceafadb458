//! The result of a finished handshake: one connection, and what both ends now know of each other.
#![forbid(unsafe_code)]

mod resumed_connection;

use std::fmt;
use std::net::TcpStream;
use std::time::Instant;

use ibex_base::Address;
use ibex_base::tls::{AuthenticatedAs, TlsConnection};

use crate::fabric::FabricKind;
use crate::handshake::{Agreement, Prologue};
use crate::identity::{Incarnation, NodeIdentity, Secret};
use crate::limits::Limits;
use crate::message::{Text, Version};
use crate::places::Place;
use crate::unix_sockets::UnixSockets;
use crate::verbs::VerbsPair;
pub use resumed_connection::ResumedConnection;

/// A finished handshake.
pub struct Established {
    // The wire.
    /// The session's control connection, of TCP or of vsock: non-blocking, everything of the
    /// handshake read and written; over TCP with `TCP_NODELAY` and keepalive.
    pub stream: TcpStream,
    /// Bytes that were read behind the peer's *Ready*: the first of the session, to be taken before
    /// any from `stream`.
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

    // The peer.
    /// The peer's description.
    pub peer: PeerInfo,
    /// The time at which this end had the connection, before the peer had said everything. It
    /// orders two runs of one identity, in whichever order their handshakes end: a run that has
    /// ended cannot begin a handshake after the next run did and still finish it.
    pub began: Instant,
    /// True at the end that connected, which is exactly one end of a session.
    pub is_dialer: bool,

    // The session.
    /// The session's name, drawn by the acceptor.
    pub session_id: [u8; 16],
    /// The secret that proves the right to resume the session, drawn by the acceptor.
    pub resume_secret: Secret,
    /// Both Hellos as they were on the wire.
    pub prologue: Prologue,

    /// The session's place among those of this node, to be held as long as the session lasts.
    pub place: Place,

    // The choice of the fabric.
    /// The fabric of the session's data.
    pub fabric: FabricKind,
    /// The reason for that fabric, in words: `shm: same host, same user`. Where frames go over vsock,
    /// it begins with `vsock`.
    pub reason: String,
    /// The reason why tcp may never carry the session's data, where the policy or the build of an
    /// end excludes it.
    pub no_tcp: Option<String>,
    /// Tells whether payloads have a checksum where tcp carries them.
    pub payload_checksums: bool,
}

/// A peer's description after the handshake.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// The node's identity.
    pub identity: NodeIdentity,
    /// The run of that node.
    pub incarnation: Incarnation,
    /// The address that the peer connected from, or was found at.
    pub address: Address,
    /// The peer's process, in this process's pid namespace and on the kernel's
    /// word (`SO_PEERCRED`). `None` without a Unix socket, and for a process
    /// that this namespace cannot see.
    pub pid: Option<u32>,
    /// The peer's process in this process's pid namespace, as the peer states it. Set only if the
    /// peer has shown that it knows this host and this namespace.
    pub stated_pid: Option<u32>,
    /// The peer's limits.
    pub limits: Limits,
    /// The version that both ends speak from here on.
    pub version: Version,
    /// The optional parts of the protocol that both ends know, as in
    /// [`Hello`](crate::message::Hello).
    pub features: u64,
    /// The name that the peer gives itself, which nothing proves; empty if it gives none.
    pub name: Text,
    /// The identity that the peer has proven, where nodes are authenticated.
    pub authenticated_as: Option<AuthenticatedAs>,
}

/// The sockets of a finished handshake, and its queue pair.
pub(crate) struct Sockets {
    pub(crate) stream: TcpStream,
    pub(crate) leftover: Vec<u8>,
    pub(crate) tls: Option<Box<dyn TlsConnection>>,
    pub(crate) address: Address,
    pub(crate) began: Instant,
    pub(crate) unix: Option<(UnixSockets, Option<u32>)>,
    pub(crate) verbs: Option<Box<dyn VerbsPair>>,
}

impl Established {
    pub(crate) fn new(agreement: Agreement, sockets: Sockets, is_dialer: bool) -> Established {
        // A Unix socket that was made before the dialer fell back to another
        // fabric is not part of the session.
        let unix = sockets.unix.filter(|_| agreement.fabric == FabricKind::Shm);
        // A queue pair of such a fabric is not part of the session either.
        let verbs = sockets
            .verbs
            .filter(|_| agreement.fabric == FabricKind::Verbs);
        let (unix, pid) = match unix {
            Some((sockets, pid)) => (Some(sockets), pid),
            None => (None, None),
        };
        Established {
            stream: sockets.stream,
            leftover: sockets.leftover,
            tls: sockets.tls,
            unix,
            verbs,
            peer: PeerInfo {
                identity: agreement.peer.identity,
                incarnation: agreement.peer.incarnation,
                address: sockets.address,
                pid,
                stated_pid: agreement.stated_pid,
                limits: agreement.peer.limits,
                version: agreement.version,
                features: agreement.features,
                name: agreement.peer.name,
                authenticated_as: agreement.authenticated_as,
            },
            began: sockets.began,
            is_dialer,
            session_id: agreement.session_id,
            resume_secret: agreement.resume_secret,
            prologue: agreement.prologue,
            place: agreement.place,
            fabric: agreement.fabric,
            reason: reason_at(sockets.address, agreement.reason),
            no_tcp: agreement.no_tcp,
            payload_checksums: agreement.payload_checksums,
        }
    }
}

/// Returns the reason for a fabric, with the name of what carries the frames: the choice of a fabric
/// knows no address.
fn reason_at(address: Address, reason: String) -> String {
    match (address, reason.strip_prefix("tcp:")) {
        (Address::Vsock { .. }, Some(why)) => format!("vsock:{why}"),
        _ => reason,
    }
}

/// Omits the resume secret, since the output ends in logs.
impl fmt::Debug for Established {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Established")
            .field("peer", &self.peer)
            .field("is_dialer", &self.is_dialer)
            .field("fabric", &self.fabric)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}
