//! The wire of a session, of any kind.

use std::{any::Any, time::Instant};

use ibex_protocol::session::{ControlQueue, Session, WireTerms};
use ibex_ring::memory::MemoryError;

#[cfg(any(test, feature = "verbs"))]
use super::{EventOutcome, WireEvent, queue_pair::QueuePairWire};
use super::{
    Frames, LastWord, MessageMemory, Received, SendRingMemory, Shut, Tools, Wire, WireParts,
    WireSocket, WireStart,
    parts::NotBegun,
    stream::{Layer, Parting, StreamWire},
    wire_path::WirePath,
};
use crate::session::{EndCause, SessionCounters};

/// The wire of a session, or none.
#[derive(Default)]
#[allow(
    clippy::large_enum_variant,
    reason = "a connection is in a box already, and each message would follow a pointer more"
)]
pub(crate) enum AnyWire {
    /// Frames are written to the session's connection, and read from it.
    Stream(StreamWire),
    /// Frames are sent over a queue pair; the connection only shows that the peer lives, or does
    /// not come back.
    #[cfg(any(test, feature = "verbs"))]
    QueuePair(Box<QueuePairWire>),
    /// No wire: the last one broke, and frames wait for another.
    #[default]
    Down,
}

impl AnyWire {
    /// Makes the wire that a handshake led to, with its socket, and returns the terms of frames
    /// over it.
    pub(super) fn new(start: WireStart) -> Result<(Self, WireSocket, WireTerms), NotBegun> {
        let WireStart {
            parts,
            session,
            data_path,
            payload_checksums,
            ..
        } = start;
        let WireParts {
            stream,
            leftover,
            tls,
            rdma,
        } = parts;
        let path = WirePath(data_path);
        let socket = match WireSocket::new(stream, session) {
            Ok(socket) => socket,
            Err(error) => return Err(NotBegun::new(error, rdma)),
        };
        let (wire, terms) = match rdma {
            None => {
                let layer = Layer::new(tls);
                let stream = StreamWire::new(layer, leftover, path, payload_checksums);
                (AnyWire::Stream(stream), WireTerms::STREAM)
            }
            #[cfg(any(test, feature = "verbs"))]
            Some(pair) => {
                let terms = match QueuePairWire::terms(&pair) {
                    Ok(terms) => terms,
                    Err(error) => return Err(NotBegun::new(error, Some(pair))),
                };
                let wire = QueuePairWire::new(pair, Layer::new(tls), &leftover);
                (AnyWire::QueuePair(Box::new(wire)), terms)
            }
        };
        Ok((wire, socket, terms))
    }

    /// Returns whether there is no wire.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        matches!(self, AnyWire::Down)
    }
}

/// Calls a method of the wire, or evaluates to `$down` if there is no wire.
macro_rules! forward {
    ($self:ident, $wire:ident => $call:expr, $down:expr) => {
        match $self {
            AnyWire::Stream($wire) => $call,
            #[cfg(any(test, feature = "verbs"))]
            AnyWire::QueuePair($wire) => $call,
            AnyWire::Down => $down,
        }
    };
}

impl Wire for AnyWire {
    #[inline(always)]
    fn send_lone(
        &mut self,
        end: u32,
        record: &[u8],
        session: &mut Session,
        counters: &SessionCounters,
        tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        forward!(self, wire => wire.send_lone(end, record, session, counters, tools), Ok(false))
    }

    fn transmit<F: Frames>(
        &mut self,
        socket: &WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        forward!(self, wire => wire.transmit(socket, frames, tools), Ok(false))
    }

    fn receive<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Received {
        forward!(self, wire => wire.receive(socket, frames, tools), Received::Nothing)
    }

    #[cfg(any(test, feature = "verbs"))]
    #[inline(always)]
    fn hear<F: Frames>(
        &mut self,
        event: WireEvent<'_>,
        frames: &mut F,
        tools: &mut Tools,
    ) -> EventOutcome {
        forward!(self, wire => wire.hear(event, frames, tools), event.turn_away())
    }

    fn in_flight(&self) -> Option<u64> {
        forward!(self, wire => wire.in_flight(), None)
    }

    fn done(&self) -> u64 {
        forward!(self, wire => wire.done(), u64::MAX)
    }

    fn revoke_offers(
        &mut self,
        is_out: impl Fn(u32, u64) -> bool,
        counters: &SessionCounters,
    ) -> Result<bool, EndCause> {
        forward!(self, wire => wire.revoke_offers(is_out, counters), Ok(true))
    }

    #[inline]
    fn is_blocked(&self) -> bool {
        forward!(self, wire => wire.is_blocked(), true)
    }

    #[inline]
    fn has_backlog(&self) -> bool {
        forward!(self, wire => wire.has_backlog(), false)
    }

    #[inline]
    fn owes_requests(&self) -> bool {
        forward!(self, wire => wire.owes_requests(), false)
    }

    #[inline]
    fn has_leftover(&self) -> bool {
        forward!(self, wire => wire.has_leftover(), false)
    }

    #[inline]
    fn reads_every_turn(&self) -> bool {
        forward!(self, wire => wire.reads_every_turn(), false)
    }

    fn belongs_to_port(&self) -> bool {
        forward!(self, wire => wire.belongs_to_port(), false)
    }

    #[inline]
    fn is_event_driven(&self) -> bool {
        forward!(self, wire => wire.is_event_driven(), false)
    }

    fn say_last_word(&mut self, socket: &WireSocket, word: LastWord) {
        forward!(self, wire => wire.say_last_word(socket, word), ());
    }

    fn begin_parting(
        &mut self,
        outgoing: Option<&mut ControlQueue>,
        parting: Parting,
        tools: &mut Tools,
    ) -> bool {
        forward!(self, wire => wire.begin_parting(outgoing, parting, tools), false)
    }

    fn part(&mut self, socket: &mut WireSocket, tools: &mut Tools) {
        forward!(self, wire => wire.part(socket, tools), ());
    }

    fn is_parting(&self) -> bool {
        forward!(self, wire => wire.is_parting(), false)
    }

    fn hear_last_word(&mut self, socket: &WireSocket) -> Received {
        forward!(self, wire => wire.hear_last_word(socket), Received::Nothing)
    }

    fn register<'a>(
        &self,
        ring: Option<&mut SendRingMemory>,
        messages: impl Iterator<Item = &'a mut MessageMemory>,
        leftovers: &mut Vec<Box<dyn Any>>,
    ) -> Result<(), MemoryError> {
        forward!(self, wire => wire.register(ring, messages, leftovers), Ok(()))
    }

    fn rest(&mut self, counters: &SessionCounters) -> bool {
        forward!(self, wire => wire.rest(counters), false)
    }

    fn check_for_lost_bytes(
        &mut self,
        counters: &SessionCounters,
        is_awaited: bool,
    ) -> Option<u32> {
        forward!(self, wire => wire.check_for_lost_bytes(counters, is_awaited), None)
    }

    fn shut(&mut self, now: Instant, session: u64) -> Option<Instant> {
        forward!(self, wire => wire.shut(now, session), None)
    }

    fn poll_shut(&mut self, now: Instant) -> Shut {
        forward!(self, wire => wire.poll_shut(now), Shut::No)
    }

    fn destroy(&mut self) {
        forward!(self, wire => wire.destroy(), ());
    }

    fn is_gone(&self) -> bool {
        forward!(self, wire => wire.is_gone(), true)
    }
}
