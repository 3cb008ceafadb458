//! The wire of a session: the seam between its frames and whatever carries them.
//!
//! The session decides which frame goes next and what an arrived one means; a `Wire` only moves
//! frames. Wires differ in where the bytes of a frame wait until they are gone, and in how that is
//! known. `stream` writes frames to the session's connection, `queue_pair` sends them with an RDMA
//! device. A new fabric implements `Wire` in a folder here, and gives `AnyWire` a variant.

mod any;
mod arrival;
mod epoll_token;
#[cfg(feature = "pipe")]
pub mod pipe;
pub(crate) mod queue_pair;
mod send_memory;
mod socket;
pub(crate) mod stream;
mod tools;
mod turn_share;

use std::{io, ptr::NonNull, sync::Arc, time::Instant};

use ibex_protocol::{
    session::{Body, Session},
    transfer::rendezvous::Chunk,
};
use ibex_ring::memory::MemoryError;

pub(crate) use any::{AnyWire, WireStart};
pub(crate) use arrival::{Arrived, Fault, FrameMemory};
pub(crate) use epoll_token::EpollToken;
pub(crate) use queue_pair::{Completed, PairEvent, QueuePairWire, register_with};
pub(crate) use send_memory::{MessageMemory, RingMemory};
pub(crate) use socket::WireSocket;
pub(crate) use tools::Tools;
pub(crate) use turn_share::PASSED_PER_TURN;

use crate::{
    rdma::LandingBlock,
    session::{EndCause, SessionCounters},
};

/// Moves the frames of one session between its core and the peer.
pub(crate) trait Wire {
    /// Sends a record that is alone in its session, if the wire has room and nothing goes before
    /// it. Returns whether it took the record; then the record's bytes are free.
    fn send_lone(
        &mut self,
        _end: u32,
        _record: &[u8],
        _session: &mut Session,
        _counters: &SessionCounters,
        _tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        // It goes with the other frames.
        Ok(false)
    }

    /// Builds frames and sends them until none is due or the wire is full. Returns whether
    /// anything went.
    fn transmit<F: Frames>(
        &mut self,
        socket: &WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, EndCause>;

    /// Takes in frames that have come and hands them on, as far as the session's share of a turn
    /// goes.
    fn receive<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Received;

    /// Returns the number of the last frame on its way, whose bytes have to stay where they are;
    /// `None` if all have gone.
    fn in_flight(&self) -> Option<u64> {
        None
    }

    /// Returns up to which frame, as [`in_flight`](Self::in_flight) counts from 1 on, bytes are
    /// needed no more; `u64::MAX` if all have gone.
    fn done(&self) -> u64 {
        u64::MAX
    }

    /// Returns whether frames are due that wait for something that wakes a sleeper: for credit, or
    /// for room, as the last turn found.
    fn is_blocked(&self) -> bool;

    /// Returns whether a frame that the session gave is to be offered to the kernel again.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Returns whether bytes are here that need no read.
    fn has_leftover(&self) -> bool {
        false
    }

    /// Returns whether each turn asks the socket for data.
    fn reads_every_turn(&self) -> bool {
        false
    }

    /// Returns whether something else than a turn brings the session on: a completion, or a
    /// handle.
    fn is_told_of_all(&self) -> bool {
        false
    }

    /// Tells the peer that this end does not come back, if that can go at once.
    fn say_last_word(&mut self, _socket: &WireSocket) {}

    /// Registers memory to send from, where that takes more than its address. Takes long.
    fn register<'a>(
        &self,
        _ring: Option<&mut RingMemory>,
        _messages: impl Iterator<Item = &'a mut MessageMemory>,
    ) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Gives memory back if no frame has come or gone since the last look. Returns whether one
    /// has.
    fn rest(&mut self, _counters: &SessionCounters) -> bool {
        false
    }

    /// Returns how many questions the peer is to be asked, since a frame of its stays cut; `None`
    /// where no frame is here in part.
    fn look_for_cut_frame(&mut self, _counters: &SessionCounters) -> Option<u32> {
        None
    }

    /// Sends nothing any more. Returns until when the wire may take to end, if it takes time;
    /// [`poll_shut`](Self::poll_shut) tells how far it is.
    fn shut(&mut self, _now: Instant, _session: u64) -> Option<Instant> {
        None
    }

    /// Tells how far the wire is on its way out.
    fn poll_shut(&mut self, _now: Instant) -> Shut {
        Shut::No
    }

    /// Destroys the rest of the wire, from which nothing comes any more.
    fn destroy(&mut self) {}

    /// Returns whether nothing is left that a turn would have to end.
    fn is_gone(&self) -> bool {
        true
    }
}

/// The core of a session as its wire sees it: the frames to send, and what takes those that come.
pub(crate) trait Frames {
    /// The state of the protocol.
    fn session(&mut self) -> &mut Session;

    /// The counters of the session.
    fn counters(&self) -> &SessionCounters;

    /// Returns whether frames wait for something that goes another way.
    fn is_held(&self) -> bool;

    /// Returns whether the session is over: then nothing is handed on any more.
    fn is_over(&self) -> bool;

    /// Takes the next frame: its head is appended to `head`, and its body lies where
    /// [`locate`](Self::locate) says. `landing` is the place of its header in the peer's arrival
    /// memory, modulo 64.
    fn next(&mut self, landing: usize, head: &mut Vec<u8>) -> Option<Body>;

    /// Returns where the body of a frame lies. Its bytes stay until the wire is
    /// [done](Wire::done) with the frame.
    fn locate(&self, body: Body) -> Option<(NonNull<u8>, usize)>;

    /// Returns the ring of a sending end.
    fn ring(&self, end: u32) -> Option<&RingMemory>;

    /// Returns a large message of a sending end that is on its way.
    fn message(&self, end: u32, sequence: u64) -> Option<&MessageMemory>;

    /// Notes that a chunk is in frame `number`. Returns whether it was its message's last.
    fn went(&mut self, end: u32, chunk: Chunk, number: u64) -> bool;

    /// Notes that the wire needs the bytes of frames up to `frame` no more.
    fn gone(&mut self, frame: u64);

    /// Hands records to their receiver.
    fn records<M: Into<FrameMemory>>(
        &mut self,
        end: u32,
        arrived: Arrived<M>,
        tools: &mut Tools,
    ) -> Result<(), Fault>;

    /// Returns whether the next bytes may be those of a large message.
    fn expects_chunk(&self) -> bool;

    /// Returns whether this node has the receiving end.
    fn has_receiver(&self, end: u32) -> bool;

    /// Returns where `bytes` at `offset` of a large message go; `None` if they are no longer
    /// wanted.
    fn place(&self, end: u32, sequence: u64, offset: u64, bytes: usize) -> Option<NonNull<u8>>;

    /// Returns the block of this index that the peer was granted ahead.
    fn block(&self, index: u16) -> Option<&Arc<LandingBlock>>;

    /// Notes that a large message comes, and has come up to `until`.
    fn chunk_moves(&mut self, end: u32, sequence: u64, until: u64);

    /// Hands on the first large message of `end`, which has come whole.
    fn chunk_done(&mut self, end: u32, time: u64);

    /// Hands on messages that lie whole in their blocks.
    fn blocks_done(&mut self, time: u64);

    /// Acts on the arrived frames.
    fn events(&mut self);
}

/// The result of a look at a wire.
#[derive(Debug)]
pub(crate) enum Received {
    /// The wire had nothing.
    Nothing,
    /// Something came, and more may be there.
    Something,
    /// The socket has no more for now.
    Drained {
        /// Something came before the socket was empty.
        any: bool,
    },
    /// The peer has closed the connection.
    Ended,
    /// The connection cannot be read any more.
    Failed(io::Error),
    /// The peer has given the session up.
    Abandoned,
    /// Bytes came over a connection that carries none.
    Strayed,
    /// A frame was refused.
    Refused(Box<Fault>),
}

/// The progress of a wire that ends.
#[derive(Debug)]
pub(crate) enum Shut {
    /// The wire was not shut, or is gone.
    No,
    /// The wire takes a while yet.
    Draining,
    /// The wire is drained, or is not waited for any longer.
    Done {
        /// The reason to wait no longer, if it was not drained.
        gave_up: Option<String>,
    },
}
