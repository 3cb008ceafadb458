//! The ends of a handshake as state machines.
//!
//! Facts go in (`handle_*`): bytes, the end of the stream, the time, the fate of a Unix socket or a
//! queue pair. Bytes and events come out (`poll_*`). The machines have no clock, socket, device or
//! randomness; their driver brings them.
//!
//! After every `handle_*` call, and once after making a machine, drain
//! `poll_transmit` and `poll_event` to `None`.
//!
//! ```text
//! dialer                                          acceptor
//!   Hello ---------------------------------------->
//!         <---------------------------------------- Hello, Offer
//!   Offer, Choice(shm) --------------------------->  listens on a Unix socket
//!         <---------------------------------------- Endpoint(shm: name, token)
//!   connects there, presents the token ===========>  accepts the token
//!   Ready ---------------------------------------->
//!         <---------------------------------------- Ready(session id, secret)
//! ```
//!
//! Over verbs each end has to know the other's queue pair, and sends nothing before the other can
//! receive:
//!
//! ```text
//!   Offer, Choice(verbs) -------------------------> prepares a queue pair
//!         <---------------------------------------- Endpoint(verbs: the acceptor's)
//!   prepares one, connects it
//!   Endpoint(verbs: the dialer's), Ready ---------> connects its own
//!         <---------------------------------------- Ready(session id, secret)
//! ```
//!
//! An endpoint that cannot be prepared or connected is ruled out with its reason: the acceptor says
//! *Unavailable*, the dialer chooses again.
//!
//! A session that resumes over a new connection has all of that already:
//!
//! ```text
//! dialer                                          acceptor
//!   Hello ---------------------------------------->
//!         <---------------------------------------- Hello, Offer
//!   Resume(session id, epoch, proof) ------------->  looks the session up
//!         <---------------------------------------- Resumed(proof)
//! ```
//!
//! Over verbs each end describes its queue pair before the other connects to it:
//!
//! ```text
//!   prepares a queue pair
//!   Resume(...), Endpoint(verbs: the dialer's) ---> prepares one, connects it
//!         <---------------------------------------- Resumed(proof), Endpoint(verbs: its own)
//!   connects its own
//!   Ready ---------------------------------------->
//! ```
//!
//! Behind the Hellos every message ends with a checksum, and the first checksum of each end also
//! covers both Hellos. A message that changed on its way is not acted on, and ends the handshake at
//! both ends, with an error after which a dialer tries again.
//!
//! If a dialer's Hello does not suit the acceptor's, the dialer waits for the acceptor's next
//! message before it says so. An acceptor that then sends its Offer had sent another Hello than the
//! one that came.
//!
//! The acceptor speaks second, so that a listener tells nothing to a port
//! scanner and spends nothing on it.
#![forbid(unsafe_code)]

mod acceptor;
mod acceptor_entropy;
mod answers;
mod conversation;
mod dialer;
mod inbox;
mod machine;
mod proof;
mod resumption;

use ibex_base::tls::AuthenticatedAs;

pub use acceptor_entropy::AcceptorEntropy;
pub use machine::Handshake;

use crate::error::HandshakeError;
use crate::fabric::Fabric;
pub use crate::handshake_step::HandshakeStep;
use crate::identity::Secret;
pub use crate::message::ResumedSession;
use crate::message::{Offer, VerbsEndpoint, Version};
use crate::places::Place;

/// An event that the driver of a handshake has to act on.
#[derive(Debug)]
pub enum HandshakeEvent {
    /// At the dialer: connect a `SOCK_SEQPACKET` socket to this name, present the token, wait for
    /// the answer, and report to [`handle_unix`](Handshake::handle_unix).
    ConnectUnix {
        /// The name.
        name: Vec<u8>,
        /// True if it is in the node's directory, false if it is abstract.
        in_directory: bool,
        /// The token to present there.
        token: Secret,
    },
    /// At the acceptor: listen on a `SOCK_SEQPACKET` socket of this name and report to
    /// [`handle_unix`](Handshake::handle_unix); then show to
    /// [`handle_token`](Handshake::handle_token) what connections of allowed users present.
    ListenUnix {
        /// The name.
        name: Vec<u8>,
        /// True if it is in the node's directory, false if it is abstract.
        in_directory: bool,
    },
    /// The dialer chose another fabric: close whatever `ListenUnix` opened.
    CloseUnix,
    /// Ask for the RDMA device for this connection and report to
    /// [`handle_device`](Handshake::handle_device).
    FindDevice,
    /// Make a queue pair and report to [`handle_prepared`](Handshake::handle_prepared).
    PreparePair,
    /// Connect that queue pair and report to [`handle_connected`](Handshake::handle_connected).
    ConnectPair(Box<VerbsEndpoint>),
    /// Another fabric is chosen: drop the queue pair.
    ClosePair,
    /// The handshake is over with a new session; write out what `poll_transmit` still has.
    Agreed(Box<Agreement>),
    /// Like `Agreed`, for a resumed session.
    Resumed(ResumedSession),
    /// The handshake is over; what `poll_transmit` still has tells the peer why.
    Failed(HandshakeError),
}

/// The result of a successful handshake, as both ends know it.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// The peer's identity, fabrics and limits.
    pub peer: Offer,
    /// The peer's process in this pid namespace, on its own word.
    pub stated_pid: Option<u32>,
    /// The version that both speak.
    pub version: Version,
    /// The optional parts of the protocol that both know, as in [`Hello`](crate::message::Hello).
    pub features: u64,
    /// The session's name.
    pub session_id: [u8; 16],
    /// The secret that proves the right to resume the session.
    pub resume_secret: Secret,
    /// The fabric of the session's data.
    pub fabric: Fabric,
    /// The reason for that fabric.
    pub reason: String,
    /// The reason why tcp may not carry the data, where a policy or a build excludes that.
    pub no_tcp: Option<String>,
    /// Tells whether payloads have a checksum where tcp carries them.
    pub payload_checksums: bool,
    /// Both Hellos.
    pub prologue: Prologue,
    /// The identity that the peer has proven, where nodes are authenticated.
    pub authenticated_as: Option<AuthenticatedAs>,
    /// The place that this end holds for as long as the session lasts.
    pub place: Place,
}

/// Both Hellos exactly as they were on the wire, magic and length included. They are everything
/// that was sent in the clear, so an authenticating handshake has to bind them. They are equal at
/// both ends unless they changed on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// The dialer's bytes.
    pub dialer: Vec<u8>,
    /// The acceptor's bytes.
    pub acceptor: Vec<u8>,
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod interception_tests;
#[cfg(test)]
mod meeting;
#[cfg(test)]
mod resume_tests;
#[cfg(test)]
mod resume_verbs_tests;
#[cfg(test)]
mod reunion;
#[cfg(test)]
mod security_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verbs_tests;
