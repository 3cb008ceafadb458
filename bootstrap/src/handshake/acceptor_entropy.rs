//! The randomness of a handshake.

use crate::identity::Secret;

/// Everything random in an acceptor's handshake, drawn by its driver.
#[derive(Clone, Debug)]
pub struct AcceptorEntropy {
    /// The nonce of the Hello.
    pub nonce: [u8; 16],
    /// The token that the dialer presents at the Unix socket, whose name follows from it.
    pub token: Secret,
    /// The session's name.
    pub session_id: [u8; 16],
    /// The secret that will prove the right to resume the session.
    pub resume_secret: Secret,
}
