//! The meeting of two ibex nodes: they greet each other, describe themselves, agree on a fabric,
//! and end with one connected socket that both know to be ready.
//!
//! The conversation runs over one TCP connection, which stays the session's
//! control connection afterwards. Its steps, in order:
//!
//! 1. *Hello*, both ways, the only cleartext: magic, version range, feature
//!    bits, security mode, nonce. Both ends compute the same highest version.
//! 2. TLS 1.3, where nodes are authenticated ([`Local::credentials`]): everything from here on
//!    is inside, and *Binding*, both ways, shows that no Hello was changed.
//! 3. *Offer*, both ways: identity, the host as hashes, limits, fabrics with their policies.
//! 4. *Choice*, by the dialer, with the reason in words.
//! 5. *Endpoint*, by the acceptor, for the chosen fabric only; over verbs, where a queue
//!    pair is connected at both ends, by the dialer as well.
//! 6. *Ready*, both ways; the acceptor's carries the new session's secrets.
//!
//! When an endpoint cannot be reached (a Unix socket in another network
//! namespace, say), steps 4 and 5 repeat with the next fabric, each fabric at
//! most once.
//!
//! When the wires of a session break, its next connection begins with Hello and the acceptor's
//! Offer too. Then the dialer sends *Resume* and the acceptor *Resumed*, each with a proof that its
//! end has the session's secret. That is all, since everything else was agreed on before.
//!
//! - [`message`]: the bytes, parsed and bounded, without I/O.
//! - [`negotiate`]: the choice of the version and of the fabric, as two pure functions.
//! - [`handshake`]: the state machines; bytes and time come in, bytes and events go out, without
//!   I/O.
//! - [`Dialer`] and [`Acceptor`]: the sockets that drive them, without waiting.
//! - [`VerbsDevices`] and [`VerbsPair`]: the traits of RDMA, which a crate that knows verbs
//!   implements.

mod error;
mod established;
mod fabric;
pub mod handshake;
mod handshake_step;
mod host_tags;
mod identity;
mod integrity;
mod io;
mod limits;
mod local;
pub mod message;
pub mod negotiate;
mod party;
mod places;
mod resumption;
mod share_with;
mod unix_sockets;
mod verbs;

pub use error::{
    BindError, DialError, Garbling, HandshakeError, HandshakeFailure, Problem, ResumeError,
    shortage_step,
};
pub use established::{Established, Finished, ResumedConnection};
pub use fabric::{Fabric, FabricOffer, Policy, VerbsDevice};
pub use ibex_base::tls::{
    AuthenticatedAs, AuthenticationError, Cause as AuthenticationCause, RefusedBy, TlsError,
};
pub use identity::{HostHint, Incarnation, NodeIdentity, Secret};
pub use integrity::Integrity;
pub use io::{
    Acceptor, DialDesk, DialOutcome, DialRequest, Dialer, Dialing, ResumeRequest, own_address,
    resolve, user_of_peer,
};
pub use limits::Limits;
pub use local::Local;
pub use message::{ResumeRefusal, SecurityMode, Text, Version, VersionRange, parse_message};
pub use places::{Place, Places, SessionLimit, SessionLimits};
pub use resumption::{RegisteredSession, Resumable, ResumableSessions, ResumeTicket};
pub use share_with::ShareWith;
pub use unix_sockets::{UnixClosing, UnixSettings, UnixSocket, UnixSockets};
pub use verbs::{PairRequest, VerbsDevices, VerbsPair};
