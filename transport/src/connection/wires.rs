//! The wires that carry a link's frames: the connection itself, or a queue pair beside it.
//!
//! The session decides which frame goes next and what an arrived one means; the wires
//! only move them. Two kinds differ in where a frame's bytes wait until they are gone,
//! and in what tells that they are; passing descriptors ([`local`](super::shared_memory)) is
//! beside either.

use std::io;

use ibex_protocol::session::WireTerms;
use ibex_ring::memory::BlockPool;

use super::{Link, queue_pair::Pair, stream::Stream};
use crate::{
    connection::{Context, Tools},
    rdma::PreparedPair,
    session::{EndCause, SessionCounters},
    stream::Layer,
};

/// The wires of one link.
#[expect(
    clippy::large_enum_variant,
    reason = "a link is in a box already, and each message would follow a pointer more"
)]
pub(super) enum Wires {
    /// Frames are written to the session's connection, and read from it.
    Stream(Stream),
    /// Frames are sent over a queue pair; the connection only tells that the peer lives.
    Pair(Box<Pair>),
    /// They broke: frames wait for others.
    None,
}

impl Wires {
    /// Those that a handshake led to, and what frames over them are like: `leftover` came behind
    /// it, and both ends check the payloads of frames over the connection or not.
    pub(super) fn new(
        layer: Layer,
        leftover: &[u8],
        pair: Option<PreparedPair>,
        payload_checksums: bool,
        blocks: &mut BlockPool,
    ) -> io::Result<(Self, WireTerms)> {
        match pair {
            None => Ok((
                Wires::Stream(Stream::new(layer, leftover, payload_checksums, blocks)?),
                WireTerms::STREAM,
            )),
            Some(_) if !leftover.is_empty() => Err(io::Error::other(
                "the peer sent frames over a connection that carries none",
            )),
            Some(pair) => {
                let terms = Pair::terms(&pair)?;
                Ok((Wires::Pair(Box::new(Pair::new(pair))), terms))
            }
        }
    }

    /// The number of the last frame on its way, whose bytes have to stay where they are;
    /// `None` if all have gone.
    pub(super) fn in_flight(&self) -> Option<u64> {
        match self {
            Wires::Stream(stream) => stream.in_flight(),
            Wires::Pair(pair) => pair.in_flight(),
            Wires::None => None,
        }
    }

    /// Whether the bytes of that frame and of all before it, as [`in_flight`](Self::in_flight)
    /// counts, are needed no more.
    pub(super) fn are_done_with(&self, frame: u64) -> bool {
        match self {
            Wires::Stream(stream) => stream.in_flight().is_none(),
            Wires::Pair(pair) => pair.in_flight().is_none() || pair.sending.slots.done() >= frame,
            Wires::None => true,
        }
    }

    /// Whether frames are due that wait for something that wakes a sleeper: for credit or
    /// for room, as the turn found that ran last, or for other wires than these, which break.
    pub(super) fn are_blocked(&self) -> bool {
        match self {
            Wires::Stream(stream) => stream.waits_for_credit || !stream.is_written(),
            Wires::Pair(pair) => pair.sending.is_blocked || !pair.is_live(),
            Wires::None => true,
        }
    }

    /// Whether no frame waits to be given to them once more.
    #[inline]
    pub(super) fn have_taken_all(&self) -> bool {
        match self {
            Wires::Stream(stream) => stream.is_written(),
            Wires::Pair(_) | Wires::None => true,
        }
    }

    /// Gives back what memory frames took, if none has come or gone since the last look.
    /// Returns whether one has.
    pub(super) fn look_for_silence(&mut self, counters: &SessionCounters) -> bool {
        match self {
            Wires::Stream(stream) => stream.look_for_silence(counters),
            Wires::Pair(_) | Wires::None => false,
        }
    }

    /// Whether nothing of them is left that a turn would have to end.
    pub(super) fn are_gone(&self) -> bool {
        match self {
            Wires::Stream(_) | Wires::None => true,
            Wires::Pair(pair) => pair.is_drained(),
        }
    }
}

impl Link {
    /// Builds frames and sends them until nothing is due or the wires are full.
    #[inline]
    pub(super) fn transmit(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        self.has_output() && self.transmit_due(tools, context)
    }

    #[inline(never)]
    fn transmit_due(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        match self.wires {
            Wires::Stream(_) => self.transmit_stream(tools, context),
            Wires::Pair(_) => self.transmit_pair(context),
            Wires::None => false,
        }
    }

    /// Takes in what the wires have and hands it on.
    pub(super) fn receive(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        match self.wires {
            Wires::Stream(_) => self.receive_stream(tools, context),
            Wires::Pair(_) => self.receive_pair(tools, context),
            Wires::None => self.readable && self.look_at_process(context),
        }
    }

    /// The wires are of no more use: takes in what arrived before, then ends the session.
    /// The first cause stays.
    pub(super) fn drain_then_end(&mut self, cause: EndCause) {
        match self.wires {
            // They are gone already, for a cause of their own.
            Wires::None => return,
            Wires::Stream(_) => self.readable = true,
            Wires::Pair(_) => self.leave_pair(),
        }
        self.broken.get_or_insert(cause);
    }
}
