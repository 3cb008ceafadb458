//! The new wires of a session that goes on.

use std::net::TcpStream;

use ibex_tls::Tls;

use crate::rdma::PreparedPair;

/// A new wire of a session.
#[derive(Debug)]
pub struct NewWire {
    /// The name of the session, which both ends know.
    pub session: [u8; 16],
    /// The number of the wire, its epoch.
    pub epoch: u64,
    /// The connection; the handshake's bytes are consumed.
    pub stream: TcpStream,
    /// Bytes that came behind the handshake.
    pub leftover: Vec<u8>,
    /// The connection's TLS, where nodes are authenticated.
    pub tls: Option<Box<Tls>>,
    /// The queue pair, if it goes on over verbs; connected to the peer's.
    pub rdma: Option<PreparedPair>,
}
