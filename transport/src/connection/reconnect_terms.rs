//! The terms on which a session goes on over another wire.

use std::{sync::Arc, time::Duration};

use super::dialer::Redial;
use crate::session::FailoverPolicy;

/// The terms on which a session goes on over another wire than the one that it began with.
#[derive(Clone, Debug)]
pub struct ReconnectTerms {
    /// The session's name, which both ends know.
    pub session: [u8; 16],
    /// How to dial the peer, at the end that dialed.
    pub redial: Option<Arc<dyn Redial>>,
    /// The fabrics that it asks for then.
    pub ways: FailoverPolicy,
    /// The peer's process, where it is one of this host's.
    pub process: Option<u32>,
    /// The longest time for which it goes over the same wires, so that both ends authenticate
    /// each other again; none where they do not.
    pub max_age: Option<Duration>,
}
