//! The parts that wires are made of, which a handshake led to.

use std::{io, net::TcpStream};

use ibex_protocol::session::WireTerms;
use ibex_ring::memory::MemoryError;
use ibex_tls::Tls;

use super::{
    AnyWire, MessageMemory, RingMemory, Tools, WireSocket, register_with,
    stream::{Layer, say_last_word},
};
use crate::{rdma::PreparedPair, session::route::Route};

/// The parts that a wire is made of. They may be given up as long as there is no wire.
#[derive(Debug)]
pub struct WireParts {
    /// The connection; the handshake's bytes are consumed.
    pub stream: TcpStream,
    /// Bytes that came behind the handshake.
    pub leftover: Vec<u8>,
    /// The connection's TLS, where nodes are authenticated.
    pub tls: Option<Box<Tls>>,
    /// The queue pair, where data goes over verbs; connected to the peer's. Its site comes into
    /// the care of this node.
    pub rdma: Option<PreparedPair>,
}

impl WireParts {
    /// Gives the connection up, over which no wire goes. A peer that has the session, which
    /// `resumes`, would wait for this end to come back: it is told.
    pub(crate) fn abandon(self, resumes: bool) {
        if resumes {
            say_last_word(&self.stream, &mut Layer::new(self.tls), 0);
        }
    }

    /// Returns whether this end speaks first where both have buffers for few frames.
    pub(crate) fn speaks_first(&self) -> bool {
        self.rdma.as_ref().is_some_and(PreparedPair::dialed)
    }

    /// Has `route` lead over these parts. A session that leaves its device gets another if it
    /// `goes_back`.
    pub(crate) fn take_route(&self, route: &Route, goes_back: bool) {
        match &self.rdma {
            Some(pair) => route.take_pair(pair),
            None => route.take_stream(goes_back),
        }
    }

    /// Makes sure that a wire of these parts can send from the memory of a session, which went
    /// over `route` before. The memory is registered where it has to be: in a turn, as only a
    /// device that was opened anew has not got it.
    ///
    /// # Errors
    /// The reason why the wire cannot.
    pub(crate) fn take_memory<'a, M>(
        &self,
        route: &Route,
        mut memory: impl Iterator<Item = (Option<&'a mut RingMemory>, M)>,
    ) -> Result<(), String>
    where
        M: Iterator<Item = &'a mut MessageMemory>,
    {
        let Some(pair) = &self.rdma else {
            return Ok(());
        };
        if !route.fits(pair) {
            return Err(
                "messages of the session are longer than the frames of a queue pair".into(),
            );
        }
        let registered =
            memory.try_for_each(|(ring, messages)| register_with(pair.site(), ring, messages));
        registered.map_err(|error| error.to_string())
    }
}

/// The results of a handshake that a wire begins with.
pub(crate) struct WireStart {
    pub(crate) parts: WireParts,
    /// The id of the session.
    pub(crate) session: u64,
    /// Data goes over the wire, and not control alone.
    pub(crate) carries_data: bool,
    /// Both ends check the payloads of frames over the connection.
    pub(crate) payload_checksums: bool,
    /// The peer waits for this end to come back when the wire breaks.
    pub(crate) resumes: bool,
}

impl WireStart {
    /// Makes the wire, with its socket, and tells what frames over it are like. Where there
    /// is no memory for it, the peer is told.
    pub(crate) fn begin(self, tools: &mut Tools) -> io::Result<(AnyWire, WireSocket, WireTerms)> {
        match self.make_room(tools) {
            Ok(()) => AnyWire::new(self),
            Err(refused) => {
                self.parts.abandon(self.resumes);
                Err(io::Error::other(refused))
            }
        }
    }

    /// Makes room for data, which comes over a network: it shall not meet the allocator.
    fn make_room(&self, tools: &mut Tools) -> Result<(), MemoryError> {
        if self.carries_data {
            if self.parts.rdma.is_none() {
                tools.blocks.provide()?;
            }
            tools.compact_blocks.provide()?;
        }
        Ok(())
    }
}
