//! Admission: a finished handshake hands its session to the engine.
#![forbid(unsafe_code)]

use std::{any::Any, net::TcpStream};

use ibex_tls::Tls;

use crate::{
    connection::ReconnectTerms,
    rdma::PreparedPair,
    session::{EngineId, PeerDescription},
    shared_memory::UnixWires,
    wire::stream::{Layer, say_last_word},
};

/// A finished handshake, ready to become a session.
#[derive(Debug)]
pub struct Admission {
    /// The connection; the handshake's bytes are consumed.
    pub stream: TcpStream,
    /// Bytes that came behind the handshake.
    pub leftover: Vec<u8>,
    /// The connection's TLS, where nodes are authenticated.
    pub tls: Option<Box<Tls>>,
    /// The Unix sockets to the peer, where the fabric is shared memory.
    pub unix: Option<UnixWires>,
    /// The queue pair, where the fabric is verbs; connected to the peer's. Its site comes
    /// into the care of this node.
    pub rdma: Option<PreparedPair>,
    /// The peer's description.
    pub peer: PeerDescription,
    /// Ends that either side may have open.
    pub max_channels: usize,
    /// Tells whether payloads have a checksum where tcp carries them.
    pub payload_checksums: bool,
    /// How the session gets another connection when this one breaks, where both ends can go
    /// on over it.
    pub reconnect: Option<ReconnectTerms>,
    /// The engine that turns it; none lets the node choose. One over a queue pair is turned by
    /// the engine that its site is of.
    pub engine: Option<EngineId>,
    /// Whatever is to be dropped when the session is over.
    pub place: Box<dyn Any + Send>,
}

impl Admission {
    /// Gives the connection up, which becomes no session. The peer may have one, and would wait for
    /// this end to come back: it is told.
    pub fn abandon(self) {
        if self.reconnect.is_some() {
            say_last_word(&self.stream, &mut Layer::new(self.tls), 0);
        }
    }
}
