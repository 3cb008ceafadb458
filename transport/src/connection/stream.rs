//! Frames over the session's own connection: written in batches, read into a block.

use std::{io, mem};

use ibex_protocol::{
    format::{frame_check::Coverage, record::MIN_ALIGNMENT},
    session::{Body, Session},
};
use ibex_ring::memory::BlockPool;

use super::{
    Link, Phase, Wires,
    cut_frame::CutFrame,
    senders::{Rings, locate},
};
use crate::{
    connection::{Context, Tools},
    session::{EndCause, SessionCounters},
    stream::{
        Layer, RecordLayer,
        inbound::Inbound,
        outbound::{Lists, Outbound},
    },
};

/// A batch goes as a whole, so its frames have no numbers.
const WHOLE_BATCH: u64 = 0;

/// The state of both directions.
pub(super) struct Stream {
    pub(super) layer: Layer,
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    /// Checks cover the payloads of messages.
    pub(super) payloads: bool,
    /// Bytes are still to be parsed that came behind the handshake, or behind the session's
    /// share of a turn.
    pub(super) has_leftover: bool,
    /// The socket took less than it was given, and epoll tells when it takes more.
    pub(super) waits_for_writable: bool,
    /// Frames are due and wait for credit, which was counted.
    pub(super) waits_for_credit: bool,
    /// A frame that is here in part, and stays so.
    pub(super) cut_frame: CutFrame,
    /// How much had come and gone when they were looked at last.
    silence: Option<(u64, u64)>,
}

impl Stream {
    /// Begins behind the handshake, of which `leftover` was read too much; what comes next is
    /// sealed by `layer`. The checks of frames cover `payloads` or not.
    pub(super) fn new(
        layer: Layer,
        leftover: &[u8],
        payloads: bool,
        blocks: &mut BlockPool,
    ) -> io::Result<Self> {
        let mut inbound = Inbound::default();
        if !leftover.is_empty() {
            inbound.make_room(blocks).map_err(io::Error::other)?;
            inbound.free(leftover.len()).copy_from_slice(leftover);
            inbound.arrived(leftover.len());
        }
        Ok(Self {
            layer,
            inbound,
            outbound: Outbound::default(),
            payloads,
            has_leftover: !leftover.is_empty(),
            waits_for_writable: false,
            waits_for_credit: false,
            cut_frame: CutFrame::default(),
            silence: None,
        })
    }

    /// Tells whether the socket has everything that it was to get.
    #[inline]
    pub(super) fn is_written(&self) -> bool {
        self.outbound.is_empty() && !self.layer.has_backlog()
    }

    /// Makes a batch of one short record, if nothing else is to go and none is being
    /// written. Returns whether it did.
    #[inline]
    pub(super) fn take_lone_record(
        &mut self,
        end: u32,
        record: &[u8],
        session: &mut Session,
        counters: &SessionCounters,
        lists: &mut Lists,
    ) -> bool {
        if !self.is_written() {
            return false;
        }
        let outbound = &mut self.outbound;
        let Some(header) = session.poll_lone_record(end, record.len(), outbound.landing()) else {
            return false;
        };
        outbound.borrow(lists);
        outbound.push_lone(&header, record, self.payloads);
        counters.frames_sent.add(1);
        counters.inline_sends.add(1);
        self.waits_for_credit = false;
        true
    }

    /// As [`Wires::look_for_silence`].
    pub(super) fn look_for_silence(&mut self, counters: &SessionCounters) -> bool {
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

    /// As [`Wires::in_flight`].
    pub(super) fn in_flight(&self) -> Option<u64> {
        (!self.is_written()).then_some(WHOLE_BATCH)
    }
}

impl Link {
    /// Builds frames and writes them until nothing is due or the socket is full.
    pub(super) fn transmit_stream(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        if let Wires::Stream(stream) = &mut self.wires {
            stream.outbound.borrow(&mut tools.lists);
        }
        let progress = self.write_batches(context);
        if let Wires::Stream(stream) = &mut self.wires {
            stream.outbound.give_back(&mut tools.lists);
        }
        progress
    }

    fn write_batches(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        if self.phase == Phase::Gone || self.broken.is_some() {
            return false;
        }
        loop {
            let Wires::Stream(stream) = &mut self.wires else {
                return progress;
            };
            if !stream.is_written() {
                match stream.outbound.write(&mut stream.layer, &self.tcp) {
                    Ok((bytes, calls)) => {
                        let counters = &self.shared.counters;
                        match self.local {
                            Some(_) => counters.control_bytes_sent.add(bytes as u64),
                            None => counters.bytes_sent.add(bytes as u64),
                        }
                        counters.writes.add(calls);
                        if stream.layer.is_sealed() {
                            counters.bytes_sealed.add(bytes as u64);
                        }
                        progress |= bytes > 0;
                    }
                    Err(error) => {
                        // What arrived before the link broke is still to be read.
                        let why = format!("writing to its connection failed: {error}");
                        self.drain_then_end(EndCause::lost(why));
                        return progress;
                    }
                }
                if !stream.is_written() {
                    return progress;
                }
                self.frames_are_gone(WHOLE_BATCH, context);
            }
            if self.has_to_pass() || !self.build_batch() {
                break;
            }
        }
        self.finish_if_said(context);
        progress
    }

    /// The next batch; false if nothing is due.
    fn build_batch(&mut self) -> bool {
        let Wires::Stream(stream) = &mut self.wires else {
            return false;
        };
        let outbound = &mut stream.outbound;
        let (mut frames, mut inline) = (0, 0);
        while !outbound.is_full() {
            let landing = outbound.landing();
            outbound.begin();
            let mut rings = Rings(&mut self.senders);
            let heads = &mut outbound.heads;
            let Some(body) = self.session.poll_transmit(&mut rings, landing, heads) else {
                outbound.take_back();
                break;
            };
            let place = locate(&self.senders, body);
            let coverage = match body {
                Body::Records { end, .. } if !stream.payloads => {
                    let alignment = self.session.alignment(end).unwrap_or(MIN_ALIGNMENT);
                    Coverage::RecordHeaders { alignment }
                }
                Body::Chunk { .. } if !stream.payloads => Coverage::Nothing,
                _ => Coverage::Whole,
            };
            // SAFETY: ring bytes stay until the peer has released them, which it cannot
            // before they are sent; large messages, and rings of ends that are gone, are
            // kept in `parting` until the batch is written.
            inline += u64::from(unsafe { outbound.push(place, coverage) });
            frames += 1;
            if let Body::Chunk { end, chunk } = body
                && let Some(sender) = self.senders.get_mut(end)
            {
                let kept = self.rewiring.is_some();
                sender.chunk_went(chunk, WHOLE_BATCH, kept, &mut self.parting);
            }
        }
        self.shared.counters.frames_sent.add(frames);
        self.shared.counters.inline_sends.add(inline);
        let waits = frames == 0 && self.session.is_out_of_credit();
        let has_waited = mem::replace(&mut stream.waits_for_credit, waits);
        match (has_waited, waits) {
            (false, true) => self.shared.counters.credit_is_out(),
            (true, false) => self.shared.counters.credit_is_there(),
            _ => {}
        }
        frames > 0
    }
}
