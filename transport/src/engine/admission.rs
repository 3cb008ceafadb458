//! Admission: a finished handshake hands its session to the engine.
#![forbid(unsafe_code)]

use crate::{
    connection::ReconnectTerms,
    node::Sessions,
    rdma::PreparedPair,
    session::{EngineId, HeldPlace, PeerDescription},
    shared_memory::UnixWires,
    wire::WireParts,
};

/// A finished handshake, ready to become a session.
#[derive(Debug)]
pub struct Admission {
    /// The connection and the other parts of the session's first wire.
    pub parts: WireParts,
    /// The Unix sockets to the peer, where the fabric is shared memory.
    pub unix: Option<UnixWires>,
    /// The peer's description.
    pub peer: PeerDescription,
    /// Most ends that either side may have open.
    pub max_channels: usize,
    /// True if payloads have a checksum where tcp carries them.
    pub payload_checksums: bool,
    /// Terms on which the session gets another connection when this one breaks, if both ends
    /// support that.
    pub reconnect: Option<ReconnectTerms>,
    /// The engine that turns the session; `None` lets the node choose. A session over a queue pair
    /// belongs to the engine of its RDMA port.
    pub engine: Option<EngineId>,
    /// The session's place in its node, dropped when the session is over.
    pub place: Box<dyn HeldPlace>,
}

impl Admission {
    /// Counts the session on the engine of its queue pair, or else on the engine that the program
    /// wants, or else on the least loaded engine. Returns the engine.
    pub(crate) fn place(mut self, sessions: &Sessions) -> (EngineId, Self) {
        let pair = self.parts.rdma.as_ref();
        let of_pair = pair.map(|pair| EngineId::new(pair.rdma_port().engine()));
        let place = sessions.place(of_pair.or(self.engine));
        let engine = place.engine();
        self.place = Box::new((self.place, place));
        (engine, self)
    }

    /// Gives the connection up before it becomes a session. The peer may have a session already,
    /// and would wait for this end to come back, so the peer is notified. Returns the queue pair, if there
    /// is one; dropping it destroys it, which takes long.
    pub fn abandon(self) -> Option<PreparedPair> {
        self.parts.abandon(self.reconnect.is_some())
    }
}
