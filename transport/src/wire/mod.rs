//! The wire of a session: the interface between its frames and the fabric that carries them.
//!
//! The session decides which frame is sent next and what an arrived frame means; a `Wire` only
//! moves frames. Wires differ in where the bytes of a frame wait until they are sent, and in how
//! the wire learns that they are. `stream` writes frames to the session's connection, `queue_pair`
//! sends them with an RDMA device. A new fabric implements `Wire` in a folder here, and gives
//! `AnyWire` a variant.

mod any;
mod arrival;
mod arrival_memory;
mod epoll_token;
#[cfg(any(test, feature = "verbs"))]
mod event;
mod granted_block;
mod parts;
#[cfg(any(test, feature = "verbs"))]
pub(crate) mod queue_pair;
mod reactor;
mod send_memory;
mod socket;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod tools;
mod turn_share;
mod wire_path;

use std::{any::Any, io, ptr::NonNull, sync::Arc, time::Instant};

use ibex_protocol::{
    session::{Body, ControlQueue, Session},
    transfer::rendezvous::Chunk,
};
use ibex_ring::memory::MemoryError;

pub(crate) use any::AnyWire;
pub(crate) use arrival::{Arrived, FrameMemory, FrameRefusal};
pub(crate) use arrival_memory::{ArrivalMemory, EagerBlockRegion, LargeWanted, ProvidedRegions};
pub(crate) use epoll_token::EpollToken;
#[cfg(any(test, feature = "verbs"))]
pub(crate) use event::{EventOutcome, RailEvent, Stray, WireEvent};
pub(crate) use granted_block::GrantedBlock;
pub use parts::WireParts;
pub(crate) use parts::WireStart;
pub(crate) use reactor::{Reactor, Reports};
pub use reactor::{Rearm, Watcher};
pub(crate) use send_memory::{MessageBytes, MessageMemory, SendRingMemory, register_with};
pub(crate) use socket::WireSocket;
pub(crate) use stream::Unanswered;
pub(crate) use tools::Tools;
pub(crate) use turn_share::PASSED_PER_TURN;

#[cfg(any(test, feature = "verbs"))]
use crate::rdma::{RdmaPort, RegisteredMessage};
use crate::session::{EndCause, SessionCounters};

/// Moves the frames of one session between its core and the peer.
pub(crate) trait Wire {
    /// Sends a lone record of the session, if the wire has room and nothing has to be sent before
    /// it. Returns whether it took the record; the record's bytes are then free.
    fn send_lone(
        &mut self,
        _end: u32,
        _record: &[u8],
        _session: &mut Session,
        _counters: &SessionCounters,
        _tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        // The record is sent with the other frames.
        Ok(false)
    }

    /// Builds frames and sends them until none is due or the wire is full. Returns whether any was
    /// sent.
    fn transmit<F: Frames>(
        &mut self,
        socket: &WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, EndCause>;

    /// Takes in arrived frames and hands them on, within the session's share of a turn.
    fn receive<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Received;

    /// Takes in events that did not come over the socket, and hands on the frames in it.
    #[cfg(any(test, feature = "verbs"))]
    fn hear<F: Frames>(
        &mut self,
        event: WireEvent<'_>,
        _frames: &mut F,
        _tools: &mut Tools,
    ) -> EventOutcome {
        event.turn_away()
    }

    /// Returns the number of the last frame in flight, whose bytes must stay in place; `None` if no
    /// frame is in flight.
    fn in_flight(&self) -> Option<u64>;

    /// Returns the last frame whose bytes are not needed any more, as
    /// [`in_flight`](Self::in_flight) counts from 1; `u64::MAX` if no frame is in flight.
    fn done(&self) -> u64;

    /// Takes from the peer the right to read messages, by end and sequence, of which `is_out` says
    /// that they are out no more. Returns false if that has to wait: their memory has to be kept.
    fn revoke_offers(
        &mut self,
        _is_out: impl Fn(u32, u64) -> bool,
        _counters: &SessionCounters,
    ) -> Result<bool, EndCause> {
        Ok(true)
    }

    /// Returns whether the last turn found that due frames wait for credit or room, or for another
    /// wire, whose arrival wakes a sleeping thread.
    fn is_blocked(&self) -> bool;

    /// Returns whether a frame taken from the session still has to be offered to the kernel again.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Returns whether requests are to be posted again that frames do not tell of.
    fn owes_requests(&self) -> bool {
        false
    }

    /// Returns whether bytes are present that need no read.
    fn has_leftover(&self) -> bool {
        false
    }

    /// Returns whether every turn asks the socket for data.
    fn reads_every_turn(&self) -> bool {
        false
    }

    /// Returns whether an RDMA port lends the buffers in which frames arrive. The engine must be
    /// notified when such a wire is gone.
    fn belongs_to_port(&self) -> bool {
        false
    }

    /// Returns whether completions and handles advance the session, and turns without them find
    /// nothing.
    fn is_event_driven(&self) -> bool {
        false
    }

    /// Tells the peer why the wire ends, if that can be sent at once.
    fn say_last_word(&mut self, socket: &WireSocket, word: LastWord);

    /// Begins to part from a peer that is to hear, behind the frames that were begun, the goodbye of
    /// `outgoing`, if that is not on its way, or [`LastWord::Renewed`] if the session goes on. The
    /// wire stays until the peer has closed its end, or until `parting` gives that up. Returns false
    /// if the wire cannot do that.
    fn begin_parting(
        &mut self,
        _outgoing: Option<&mut ControlQueue>,
        _parting: stream::Parting,
        _tools: &mut Tools,
    ) -> bool {
        false
    }

    /// Goes on with parting.
    fn part(&mut self, _socket: &mut WireSocket, _tools: &mut Tools) {}

    /// Returns whether the wire parts from its peer, and needs the socket for that.
    fn is_parting(&self) -> bool {
        false
    }

    /// Looks at a connection beside the wire, on which the peer may have said that it does not come
    /// back.
    fn hear_last_word(&mut self, _socket: &WireSocket) -> Received {
        Received::Nothing
    }

    /// Registers memory to send from, if sending takes more than its address. Registration takes
    /// long. Registrations that are replaced go to `leftovers`, to be dropped behind the turn.
    fn register<'a>(
        &self,
        _ring: Option<&mut SendRingMemory>,
        _messages: impl Iterator<Item = &'a mut MessageMemory>,
        _leftovers: &mut Vec<Box<dyn Any>>,
    ) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Gives memory back if no frame was received or sent since the last check. Returns whether one
    /// was.
    fn rest(&mut self, _counters: &SessionCounters) -> bool {
        false
    }

    /// Returns how many questions to ask the peer because one of its frames stays incomplete, or
    /// because a report of it is awaited and no byte comes; `None` if neither is so.
    fn check_for_lost_bytes(
        &mut self,
        _counters: &SessionCounters,
        _is_awaited: bool,
    ) -> Option<u32> {
        None
    }

    /// Stops sending and begins to end the wire. Returns the time by which the wire must have
    /// ended, if that takes time; [`poll_shut`](Self::poll_shut) returns the progress.
    fn shut(&mut self, now: Instant, session: u64) -> Option<Instant>;

    /// Returns the progress of a wire that ends.
    fn poll_shut(&mut self, now: Instant) -> Shut;

    /// Destroys the rest of the wire, over which no data can arrive any more.
    fn destroy(&mut self);

    /// Returns whether the wire has ended, so that no turn has to end it.
    fn is_gone(&self) -> bool;
}

/// The core of a session as its wire sees it: the source of frames to send, and the consumer of
/// arrived frames.
pub(crate) trait Frames {
    /// Returns the state of the protocol.
    fn session(&mut self) -> &mut Session;

    /// Returns the counters of the session.
    fn counters(&self) -> &SessionCounters;

    /// Returns whether frames wait for messages that are passed over another socket.
    fn is_held(&self) -> bool;

    /// Returns whether the session is over, so that nothing is handed on any more.
    fn is_over(&self) -> bool;

    /// Takes the next frame. Its head is appended to `head`; [`locate`](Self::locate) returns the
    /// location of its body. `arrival_offset` is the place of its header in the peer's arrival memory,
    /// modulo 64.
    fn next(&mut self, arrival_offset: usize, head: &mut Vec<u8>) -> Option<Body>;

    /// Returns the location of a frame's body. Its bytes stay until the wire is [done](Wire::done)
    /// with the frame.
    fn locate(&self, body: Body) -> Option<(NonNull<u8>, usize)>;

    /// Gives up the channel of the message whose byte at `place` the kernel could not read. Returns
    /// the cause with which the wire ends, which has begun to carry the message; `None` if there is
    /// no such message.
    fn is_unreadable(&mut self, place: NonNull<u8>) -> Option<EndCause>;

    /// Returns the ring of a sending end.
    fn ring(&self, end: u32) -> Option<&SendRingMemory>;

    /// Returns a large message that a sending end is sending.
    fn message(&self, end: u32, sequence: u64) -> Option<&MessageMemory>;

    /// Notes that a chunk is in frame `number`. Returns whether it was its message's last chunk.
    fn went(&mut self, end: u32, chunk: Chunk, number: u64) -> bool;

    /// Notes that the peer has read a message, and that the wire does not need it any more after
    /// request `number`.
    #[cfg(any(test, feature = "verbs"))]
    fn taken(&mut self, end: u32, whole: Chunk, number: u64);

    /// Notes that the wire does not need the bytes of frames up to `frame` any more.
    fn gone(&mut self, frame: u64);

    /// Hands records to their receiver.
    fn records<M: Into<FrameMemory>>(
        &mut self,
        end: u32,
        arrived: Arrived<M>,
        tools: &mut Tools,
    ) -> Result<(), FrameRefusal>;

    /// Returns whether the next bytes may belong to a large message.
    fn expects_chunk(&self) -> bool;

    /// Returns whether this node has the receiving end.
    fn has_receiver(&self, end: u32) -> bool;

    /// Returns the destination of `bytes` at `offset` of a large message; `None` if they are no
    /// longer wanted.
    fn place(&self, end: u32, sequence: u64, offset: u64, bytes: usize) -> Option<NonNull<u8>>;

    /// Returns the registered memory that a large message is read into.
    #[cfg(any(test, feature = "verbs"))]
    fn target(&self, end: u32, sequence: u64) -> Option<&Arc<RegisteredMessage>>;

    /// Returns the memory that a large message is read into, as it is registered with the port of a
    /// rail.
    #[cfg(any(test, feature = "verbs"))]
    fn target_at(
        &self,
        end: u32,
        sequence: u64,
        rdma_port: &RdmaPort,
    ) -> Option<Arc<RegisteredMessage>>;

    /// Returns the block of this index that the peer was granted ahead.
    fn block(&self, index: u16) -> Option<&Arc<GrantedBlock>>;

    /// Notes that a large message has arrived up to `until`.
    fn chunk_moves(&mut self, end: u32, sequence: u64, until: u64);

    /// Hands on the first large message of `end`, which has arrived completely.
    fn chunk_done(&mut self, end: u32, time: u64);

    /// Hands on messages that lie complete in their blocks.
    fn blocks_done(&mut self, time: u64);

    /// Acts on the arrived frames.
    fn events(&mut self);
}

/// Why an end ends a wire that works.
#[derive(Debug)]
pub(crate) enum LastWord {
    /// It does not come back, for the reason for which its program has ended the session, if it has.
    Abandoned(Option<Arc<str>>),
    /// It comes back over a new connection, on which both ends authenticate each other again. The
    /// word is the announced end of the TLS stream, so only an encrypted wire has it.
    Renewed,
}

/// The result of a check of a wire.
#[derive(Debug)]
pub(crate) enum Received {
    /// No data arrived.
    Nothing,
    /// Data arrived, and more may be present.
    Something,
    /// The socket has no more data for now.
    Drained {
        /// Data arrived before the socket was empty.
        any: bool,
    },
    /// The peer has closed the connection.
    Ended,
    /// The peer has closed the connection, after the last word that another is to take its place.
    Renewed,
    /// The connection cannot be read any more.
    Failed(io::Error),
    /// The peer has given the session up, for the reason for which its program ended it, if it did.
    Abandoned(Option<Arc<str>>),
    /// Bytes arrived over a connection that must not carry any.
    Strayed,
    /// A frame was refused.
    Refused(Box<FrameRefusal>),
}

/// The progress of a wire that ends.
#[derive(Debug)]
pub(crate) enum Shut {
    /// The wire was not shut, or is gone.
    No,
    /// The wire still takes time to end.
    Draining,
    /// The wire is drained, or the wait for that is over.
    Done {
        /// The reason for giving up the wait, if the wire was not drained.
        gave_up: Option<String>,
    },
}
