//! The parts of a wire, which a handshake produced.

use std::{any::Any, io, net::TcpStream};

use ibex_base::tls::TlsConnection;
use ibex_protocol::session::{DataPath, WireTerms};

use super::{
    AnyWire, LastWord, MessageMemory, SendRingMemory, Tools, WireSocket, register_with,
    stream::{Layer, say_last_word},
    wire_path::WirePath,
};
use crate::{rdma::PreparedPair, session::frame_path::FramePath};

/// The parts that a wire is made of. They may be given up until the wire is made.
#[derive(Debug)]
pub struct WireParts {
    /// The connection, whose handshake bytes are consumed.
    pub stream: TcpStream,
    /// Bytes that arrived after the handshake.
    pub leftover: Vec<u8>,
    /// The connection's TLS, if nodes are authenticated.
    pub tls: Option<Box<dyn TlsConnection>>,
    /// The queue pair, connected to the peer's, if data goes over verbs. This node takes over its
    /// RDMA port.
    pub rdma: Option<PreparedPair>,
}

impl WireParts {
    /// Gives up the connection without making a wire. If the session `resumes`, the peer would wait
    /// for this end to come back, so it is notified. Returns the queue pair, to be destroyed outside turns.
    pub(crate) fn abandon(self, resumes: bool) -> Option<PreparedPair> {
        if resumes {
            say_last_word(
                &self.stream,
                &mut Layer::new(self.tls),
                0,
                LastWord::Abandoned(None),
            );
        }
        self.rdma
    }

    /// Returns whether this end speaks first if both ends have buffers for few frames.
    pub(crate) fn speaks_first(&self) -> bool {
        self.rdma.as_ref().is_some_and(PreparedPair::dialed)
    }

    /// Makes `path` lead over these parts.
    pub(crate) fn take_path(&self, path: &FramePath) {
        match &self.rdma {
            Some(pair) => path.take_pair(pair),
            None => path.take_stream(),
        }
    }

    /// Makes sure that a wire of these parts can send from the memory of a session that used
    /// `path` before. Memory that is not registered is registered here, inside the turn, because
    /// only a newly opened device lacks the registration. Registrations that are replaced go to
    /// `leftovers`.
    ///
    /// # Errors
    /// The reason why the wire cannot send from the memory.
    pub(crate) fn take_memory<'a, M>(
        &self,
        path: &FramePath,
        mut memory: impl Iterator<Item = (Option<&'a mut SendRingMemory>, M)>,
        leftovers: &mut Vec<Box<dyn Any>>,
    ) -> Result<(), String>
    where
        M: Iterator<Item = &'a mut MessageMemory>,
    {
        let Some(pair) = &self.rdma else {
            return Ok(());
        };
        if !path.fits(pair) {
            return Err(
                "messages of the session are longer than the frames of a queue pair".into(),
            );
        }
        let registered = memory.try_for_each(|(ring, messages)| {
            register_with(pair.rdma_port(), ring, messages, leftovers)
        });
        registered.map_err(|error| error.to_string())
    }
}

/// The results of a handshake, from which a wire is made.
pub(crate) struct WireStart {
    pub(crate) parts: WireParts,
    /// The id of the session.
    pub(crate) session: u64,
    /// The path of the session's messages.
    pub(crate) data_path: DataPath,
    /// Both ends check the payloads of frames over the connection.
    pub(crate) payload_checksums: bool,
    /// The peer waits for this end to come back when the wire breaks.
    pub(crate) resumes: bool,
}

impl WireStart {
    /// Makes the wire and its socket, and returns the terms of frames over it. If there is no
    /// memory for the wire, the peer is notified.
    pub(crate) fn begin(
        self,
        tools: &mut Tools,
    ) -> Result<(AnyWire, WireSocket, WireTerms), NotBegun> {
        let has_buffers = self.parts.rdma.is_some();
        match WirePath(self.data_path).make_room(has_buffers, tools) {
            Ok(()) => AnyWire::new(self),
            Err(refused) => {
                let pair = self.parts.abandon(self.resumes);
                Err(NotBegun::new(io::Error::other(refused), pair))
            }
        }
    }
}

/// The failure to make a wire.
pub(crate) struct NotBegun {
    pub(crate) error: io::Error,
    /// The queue pair, if there is one, to be destroyed behind the turn.
    pub(crate) pair: Option<Box<PreparedPair>>,
}

impl NotBegun {
    pub(super) fn new(error: io::Error, pair: Option<PreparedPair>) -> Self {
        let pair = pair.map(Box::new);
        Self { error, pair }
    }
}
