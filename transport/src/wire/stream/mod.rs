//! Frames over the session's own connection: all frames of a session over tcp, and the control
//! frames of a session over shared memory.
//!
//! Ring memory goes to the socket as scatter entries, and no bytes are staged. Arriving bytes are
//! read into blocks, where the receiver reads them in place. The [`RecordLayer`] between frames and
//! socket is plain, or TLS.

pub(crate) mod inbound;
mod io_fault;
mod layer;
mod lost_bytes;
pub(crate) mod outbound;
mod parting;
mod receive;
mod record_layer;
mod sealed;
mod transmit;
mod unanswered;

use std::{io::IoSlice, net::TcpStream, sync::Arc, time::Instant};

use ibex_protocol::{
    format::{
        control::Control,
        frame::{FrameHeader, FrameKind},
        frame_check::{CHECK_BYTES, Coverage, verify_body, verify_head, write_checks},
    },
    framing::LEAST_BUFFER_BYTES,
    session::{self, ControlQueue, Session},
};

use super::{Frames, LastWord, Received, Shut, Tools, Wire, WireSocket, wire_path::WirePath};
use crate::session::{EndCause, SessionCounters};
use inbound::Inbound;
use lost_bytes::{Finding, LostBytes};
use outbound::Outbound;

pub(crate) use io_fault::cause_of;
pub(crate) use layer::Layer;
pub(crate) use parting::Parting;
pub(crate) use record_layer::{Plain, RecordLayer};
pub(crate) use sealed::SealedLayer;
#[cfg(test)]
pub(crate) use sealed::tests::tls_ends;
pub(crate) use unanswered::{Unanswered, unanswered};

/// The number of every frame in flight, because a batch is sent as a whole.
const WHOLE_BATCH: u64 = 1;

/// The session's connection as a wire.
pub(crate) struct StreamWire {
    layer: Layer,
    inbound: Inbound,
    outbound: Outbound,
    /// The path of the session's messages.
    path: WirePath,
    /// Checks cover the payloads of messages.
    payloads: bool,
    /// Bytes are still to be parsed that arrived after the handshake, or beyond the session's share
    /// of a turn.
    has_leftover: bool,
    /// Bytes that arrived after the handshake, kept here until the first turn, so that the thread
    /// that makes the wire is not the first to touch arrival memory.
    behind_handshake: Box<[u8]>,
    /// Frames are due and wait for credit, and the wait was counted.
    waits_for_credit: bool,
    /// The looks at bytes that may be lost.
    lost_bytes: LostBytes,
    /// Bytes received and sent by the last check.
    silence: Option<(u64, u64)>,
    /// The end of the wire, whose session is over.
    parting: Option<Parting>,
}

impl StreamWire {
    /// Begins after the handshake, whose surplus bytes are `leftover`; later bytes go through
    /// `layer`. `payloads` says whether the checks of frames cover payloads.
    pub(super) fn new(layer: Layer, leftover: Vec<u8>, path: WirePath, payloads: bool) -> Self {
        Self {
            layer,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            path,
            payloads,
            has_leftover: !leftover.is_empty(),
            // The boxed slice drops the spare capacity of the handshake's buffer.
            behind_handshake: leftover.into_boxed_slice(),
            waits_for_credit: false,
            lost_bytes: LostBytes::default(),
            silence: None,
            parting: None,
        }
    }
}

impl StreamWire {
    /// Returns whether the socket has accepted all bytes that were to be written.
    #[inline]
    fn is_written(&self) -> bool {
        self.outbound.is_empty() && !self.layer.has_backlog()
    }
}

impl Wire for StreamWire {
    /// Makes a batch of one short record, to be written next.
    #[inline]
    fn send_lone(
        &mut self,
        end: u32,
        record: &[u8],
        session: &mut Session,
        counters: &SessionCounters,
        tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        if !self.is_written() {
            return Ok(false);
        }
        let outbound = &mut self.outbound;
        let Some(header) = session.poll_lone_record(end, record.len(), outbound.arrival_offset())
        else {
            return Ok(false);
        };
        outbound.borrow(&mut tools.lists);
        outbound.push_lone(&header, record, self.payloads);
        counters.frames_sent.add(1);
        counters.inline_sends.add(1);
        self.waits_for_credit = false;
        Ok(true)
    }

    fn transmit<F: Frames>(
        &mut self,
        socket: &WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        self.outbound.borrow(&mut tools.lists);
        let written = self.write_batches(socket.stream(), frames);
        self.outbound.give_back(&mut tools.lists);
        written
    }

    fn receive<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Received {
        self.read(socket, frames, tools)
            .unwrap_or_else(|refused| refused)
    }

    fn in_flight(&self) -> Option<u64> {
        (!self.is_written()).then_some(WHOLE_BATCH)
    }

    fn done(&self) -> u64 {
        match self.is_written() {
            true => u64::MAX,
            false => WHOLE_BATCH - 1,
        }
    }

    fn is_blocked(&self) -> bool {
        self.waits_for_credit || !self.is_written() || self.parting.is_some()
    }

    #[inline]
    fn has_backlog(&self) -> bool {
        !self.is_written()
    }

    #[inline]
    fn has_leftover(&self) -> bool {
        self.has_leftover
    }

    #[inline]
    fn reads_every_turn(&self) -> bool {
        self.path.reads_every_turn()
    }

    fn say_last_word(&mut self, socket: &WireSocket, word: LastWord) {
        if self.is_written() && self.parting.is_none() {
            let frames = self.outbound.frames();
            say_last_word(socket.stream(), &mut self.layer, frames, word);
        }
    }

    fn begin_parting(
        &mut self,
        outgoing: Option<&mut ControlQueue>,
        parting: Parting,
        tools: &mut Tools,
    ) -> bool {
        if let Some(goodbye) = outgoing.and_then(ControlQueue::say_goodbye_now) {
            self.outbound.borrow(&mut tools.lists);
            self.outbound.push_control(&goodbye);
        }
        self.parting = Some(parting);
        true
    }

    fn part(&mut self, socket: &mut WireSocket, tools: &mut Tools) {
        let Some(mut parting) = self.parting.take() else {
            return;
        };
        if parting.go_on(&mut self.outbound, &mut self.layer, socket) {
            self.parting = Some(parting);
        }
        self.outbound.give_back(&mut tools.lists);
    }

    fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    fn shut(&mut self, _now: Instant, _session: u64) -> Option<Instant> {
        Some(self.parting.as_ref()?.until())
    }

    fn poll_shut(&mut self, now: Instant) -> Shut {
        match &self.parting {
            None => Shut::No,
            Some(parting) => parting.poll(now),
        }
    }

    fn destroy(&mut self) {
        self.parting = None;
    }

    fn is_gone(&self) -> bool {
        self.parting.is_none()
    }

    fn rest(&mut self, counters: &SessionCounters) -> bool {
        let moved = (
            counters.bytes_received.get() + counters.control_bytes_received.get(),
            counters.bytes_sent.get() + counters.control_bytes_sent.get(),
        );
        if self.silence.replace(moved) != Some(moved) {
            return true;
        }
        self.inbound.rest();
        self.layer.rest();
        false
    }

    fn check_for_lost_bytes(
        &mut self,
        counters: &SessionCounters,
        is_awaited: bool,
    ) -> Option<u32> {
        let part = self.layer.part_bytes();
        let bytes = counters.bytes_received.get() + counters.control_bytes_received.get();
        let (bytes, frames) = (bytes + part as u64, self.inbound.frames);
        let is_cut = self.inbound.is_in_frame() || part > 0;
        let is_missed = !self.has_leftover && (is_cut || is_awaited);
        match self.lost_bytes.check(is_missed, bytes, frames) {
            Finding::Nothing => None,
            // The socket has no room for a question either.
            Finding::Ask(_) if !self.is_written() => Some(0),
            Finding::Wait => Some(0),
            Finding::Ask(times) => Some(times),
        }
    }
}

/// Tells the peer of a session, after `frames` frames, that this end does not come back.
pub(crate) fn say_last_word(stream: &TcpStream, layer: &mut Layer, frames: u64, word: LastWord) {
    // If the word does not arrive, a time-out of the peer takes its place.
    let _ = match word {
        LastWord::Abandoned(reason) => {
            let frame = last_word(frames, reason);
            layer.write(stream, &[IoSlice::new(&frame)]).map(drop)
        }
        LastWord::Renewed => layer.end(stream),
    };
}

/// Returns the frame, with its check, that says after `frames` frames that this end does not come
/// back.
pub(crate) fn last_word(frames: u64, reason: Option<Arc<str>>) -> Vec<u8> {
    let mut frame = vec![0; CHECK_BYTES];
    frame.append(&mut session::last_word(reason));
    write_checks(frames, &mut frame, None, Coverage::Whole);
    frame
}

/// Reads the last word of a peer at the front of `bytes`, where no frame stands before it:
/// [`Received::Abandoned`], [`Received::Nothing`] while the word is not whole, or
/// [`Received::Strayed`].
pub(crate) fn parse_last_word(bytes: &[u8]) -> Received {
    let head = match verify_head(0, bytes) {
        Ok(Some(head)) => head,
        Ok(None) => return Received::Nothing,
        Err(_) => return Received::Strayed,
    };
    let Ok(Some(header)) = FrameHeader::parse(head.frame) else {
        return Received::Strayed;
    };
    let length = header.length as usize;
    if header.kind != FrameKind::Control || length > LEAST_BUFFER_BYTES {
        return Received::Strayed;
    }
    if head.frame.len() < header.padded_length() {
        return Received::Nothing;
    }
    let frame = &head.frame[..length];
    let verified = verify_body(&header, frame, Coverage::Whole, head.body_check);
    match verified.map(|()| Control::decode(&frame[header.body_offset()..])) {
        Ok(Ok(Control::Abandoned)) => Received::Abandoned(None),
        Ok(Ok(Control::Goodbye { reason })) => Received::Abandoned(reason),
        _ => Received::Strayed,
    }
}
