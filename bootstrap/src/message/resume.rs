//! *Resume* and *Resumed*: the wires of a session broke, and this connection is its next.

use crate::fabric::Fabric;

ibex_base::wire_structs! {
    /// A session that resumes over a new connection.
    pub struct ResumedSession {
        /// The session's name.
        pub session_id: [u8; 16] = "session id",
        /// The epoch that begins; higher than any before it.
        pub epoch: u64 = "epoch",
        /// The fabric that is to carry the data.
        pub fabric: Fabric = "fabric kind",
    }

    /// A dialer's message in place of its *Offer*, to resume a session.
    pub struct Resume {
        /// The session, as the dialer wants it to resume.
        pub session: ResumedSession = "session",
        /// The proof that the dialer has the session's secret.
        pub proof: [u8; 32] = "proof",
    }

    /// The acceptor's answer: the epoch has begun.
    pub struct Resumed {
        /// The proof that the acceptor has the session's secret.
        pub proof: [u8; 32] = "proof",
    }
}
