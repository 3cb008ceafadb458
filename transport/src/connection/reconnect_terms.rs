//! The terms on which a session continues over another wire.

use std::time::Duration;

use super::dialer::Redial;
use crate::session::FailoverPolicy;

/// The terms on which a session continues over another wire than the one that it began with.
#[derive(Clone, Debug)]
pub struct ReconnectTerms {
    /// The session's name, which both ends know.
    pub session: [u8; 16],
    /// The means of dialing the peer, at the end that dialed.
    pub redial: Option<Redial>,
    /// The fabrics that a redial asks for.
    pub ways: FailoverPolicy,
    /// The peer's process, if it runs on this host.
    pub process: Option<u32>,
    /// The longest time for which the session uses the same wires, so that both ends authenticate
    /// each other again; `None` if they do not authenticate.
    pub max_age: Option<Duration>,
}
