//! *Ready*: this end has everything it needs.

use super::layout::{Flagged, UnlessZero};
use crate::identity::Secret;

ibex_base::wire_structs! {
    /// The last message of both ends: the dialer's first, then the
    /// acceptor's, with the session's secrets. Nothing else ever carries them.
    pub struct Ready {
        /// The sender's process, sent only to a peer for which the number means the same process.
        pub process: Option<u32> = "process" [UnlessZero],
        /// The acceptor's half.
        pub session: Option<SessionSecrets> = "session flag" [Flagged],
    }

    /// A session's name, and the secret that proves the right to it.
    pub struct SessionSecrets {
        /// The session's name.
        pub id: [u8; 16] = "session id",
        /// The key of the proof that a later connection belongs to this session.
        pub resume: Secret = "resume secret",
    }
}

impl Ready {
    /// The message that says nothing else.
    pub const ALONE: Ready = Ready {
        process: None,
        session: None,
    };
}
