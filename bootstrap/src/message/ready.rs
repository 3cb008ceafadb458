//! *Ready*: this end has everything it needs.

use crate::identity::Secret;

/// The last message of both ends: the dialer's first, then the
/// acceptor's, with the session's secrets. Nothing else ever carries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The sender's process, sent only to a peer for which the number means the same process.
    pub process: Option<u32>,
    /// The acceptor's half.
    pub session: Option<SessionSecrets>,
}

/// A session's name, and the secret that proves the right to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSecrets {
    /// The session's name.
    pub id: [u8; 16],
    /// The key of the proof that a later connection belongs to this session.
    pub resume: Secret,
}

impl Ready {
    /// The message that says nothing else.
    pub const ALONE: Ready = Ready {
        process: None,
        session: None,
    };
}
