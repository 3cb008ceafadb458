//! The steps of a handshake, as errors name them.
#![forbid(unsafe_code)]

use std::fmt;

/// The event that one end of a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeStep {
    /// The peer's *Hello*.
    Hello,
    /// The peer's *Binding*, behind the handshake of TLS.
    Binding,
    /// The peer's *Offer*.
    Offer,
    /// The dialer's *Choice*.
    Choice,
    /// The acceptor's *Endpoint*.
    Endpoint,
    /// The Unix socket: this end connects or listens.
    UnixSocket,
    /// This end's own RDMA device has to be found.
    Device,
    /// This end's own queue pair has to be made or connected.
    QueuePair,
    /// The peer's *Ready*.
    Ready,
    /// The acceptor's *Resumed*.
    Resumed,
    /// The handshake has ended.
    Finished,
}

impl HandshakeStep {
    /// Returns whether the end that resumes a session has asked for it by then.
    pub(crate) fn is_after_resume(self) -> bool {
        matches!(self, HandshakeStep::Resumed | HandshakeStep::Endpoint)
    }

    /// Returns whether this node, and not its peer, has to act.
    pub fn is_ours(self) -> bool {
        matches!(self, HandshakeStep::Device | HandshakeStep::QueuePair)
    }
}

impl fmt::Display for HandshakeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HandshakeStep::Hello => "its Hello",
            HandshakeStep::Binding => "its proof of who it is",
            HandshakeStep::Offer => "its Offer",
            HandshakeStep::Choice => "its Choice",
            HandshakeStep::Endpoint => "its Endpoint",
            HandshakeStep::UnixSocket => "the Unix socket",
            HandshakeStep::Device => "this node's RDMA device",
            HandshakeStep::QueuePair => "this node's queue pair",
            HandshakeStep::Ready => "its Ready",
            HandshakeStep::Resumed => "its Resumed",
            HandshakeStep::Finished => "the end",
        })
    }
}
