//! The bytes of a node on their way in and out: building, cutting, joining and handling frames.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use ibex_protocol::{
    format::{
        control::Control,
        frame::{BLOCK_ALIGNMENT, FRAME_ALIGNMENT, FrameHeader, FrameKind},
    },
    framing::Carriage,
    session::{Arrival, Body},
};

use super::{Node, Stage};
use crate::{Checked, Fault, ensure, ledger::Ledger, sender::Rings, wire::Wire};

/// Bytes that arrived and are not handled yet.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    bytes: Vec<u8>,
    /// The beginning of the next frame in `bytes`.
    parsed: usize,
    /// The beginning of the next frame in arrival memory, modulo [`BLOCK_ALIGNMENT`].
    arrival_offset: usize,
    chunk: Option<ChunkIn>,
}

/// A chunk whose head was handled and whose bytes are still arriving.
#[derive(Debug)]
struct ChunkIn {
    place: Place,
    /// Set for a written chunk, which comes without a frame.
    is_written: bool,
    is_last: bool,
    left: usize,
    /// Zeros behind the chunk.
    fill: usize,
}

/// The destination of bytes.
#[derive(Clone, Copy, Debug)]
enum Place {
    Nowhere,
    /// A large message.
    Message {
        end: u32,
        sequence: u64,
        offset: u64,
    },
    /// A block.
    Block {
        address: u64,
        is_first: bool,
    },
    /// The large message of the oldest read.
    Read {
        offset: u64,
    },
}

/// Bytes to send.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    bytes: Vec<u8>,
    written: usize,
    arrival_offset: usize,
    /// Bytes sent before these.
    behind: u64,
    /// The ends of writes into the peer's memory that are not known to have arrived.
    writes: VecDeque<u64>,
}

impl Outbound {
    /// Starts behind this many bytes.
    pub(super) fn behind(bytes: u64) -> Self {
        Self {
            behind: bytes,
            ..Self::default()
        }
    }

    /// Returns whether there are writes that are not known to have arrived.
    pub(super) fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }
}

impl Inbound {
    /// Starts with these bytes, which arrived already.
    pub(super) fn beginning_with(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    fn unparsed(&self) -> &[u8] {
        &self.bytes[self.parsed..]
    }

    fn consume(&mut self, bytes: usize) {
        self.parsed += bytes;
        self.arrival_offset = (self.arrival_offset + bytes) % BLOCK_ALIGNMENT;
    }
}

impl Node {
    /// Writes everything that is due. Returns whether anything was sent.
    pub(crate) fn transmit(&mut self, now: u64, wire: &mut Wire, ledger: &Ledger) -> Checked<bool> {
        let mut any = false;
        self.complete_writes(wire);
        self.poll_rings()?;
        loop {
            while self.outbound.bytes.len() < FULL_BYTES && self.build_frame()? {}
            self.handle_events(ledger)?;
            let outbound = &mut self.outbound;
            if outbound.bytes.is_empty() {
                return Ok(any);
            }
            let written = wire.write(now, &outbound.bytes[outbound.written..]);
            any |= written > 0;
            outbound.written += written;
            if outbound.written < outbound.bytes.len() {
                return Ok(any);
            }
            outbound.behind += outbound.written as u64;
            outbound.bytes.clear();
            outbound.written = 0;
        }
    }

    /// Completes writes that have arrived in the peer's memory.
    fn complete_writes(&mut self, wire: &Wire) {
        let arrived = wire.arrived();
        let writes = &mut self.outbound.writes;
        let are_there = writes.partition_point(|&end| end <= arrived);
        writes.drain(..are_there);
        if are_there > 0 {
            self.session.ends.writes_are_done(are_there as u32);
        }
    }

    /// Builds a frame of a lone record, or tells the session which rings have records.
    pub(super) fn poll_rings(&mut self) -> Checked {
        let mut rings = Rings(&mut self.senders);
        let ends = &mut self.with_records;
        ends.clear();
        rings.with_records(ends);
        if ends.len() > 1 && self.random.chance(self.options.reorder_per_mille) {
            let first = self.random.below(ends.len() as u64) as usize;
            ends.rotate_left(first);
            self.counts.faults.count(Fault::Reorder, first > 0);
        }
        if let ([end], true) = (&ends[..], self.outbound.bytes.is_empty())
            && let Some((position, bytes)) = rings.lone_record(*end)
        {
            let carriage = self.wires.carriage;
            let arrival_offset = carriage.arrival_offset(self.outbound.arrival_offset);
            if let Some(header) = self.session.poll_lone_record(*end, bytes, arrival_offset) {
                rings.advance(*end, bytes);
                self.counts.lone += 1;
                self.outbound.arrival_offset = arrival_offset;
                let out = &mut self.outbound.bytes;
                header.append_to(None, out);
                self.senders[end].ring_bytes(position, bytes, out);
                return self.finish_frame(0);
            }
        }
        for &end in &self.with_records {
            self.session.ends.mark_ready(end);
        }
        Ok(())
    }

    fn build_frame(&mut self) -> Checked<bool> {
        if self.do_offers_and_reads()? {
            return Ok(true);
        }
        let Outbound {
            bytes: out,
            arrival_offset,
            behind,
            writes,
            ..
        } = &mut self.outbound;
        let start = out.len();
        let carriage = self.wires.carriage;
        *arrival_offset = carriage.arrival_offset(*arrival_offset);
        let mut rings = Rings(&mut self.senders);
        let Some(body) = self.session.poll_transmit(&mut rings, *arrival_offset, out) else {
            self.counts.out_of_credit += u64::from(self.session.is_out_of_credit());
            return Ok(false);
        };
        if body == Body::Inline {
            self.finish_frame(start)?;
            self.repeat(start);
            return Ok(true);
        }
        let gone = "a frame goes out for an end that is gone";
        match body {
            Body::Inline => {}
            Body::Records {
                end,
                position,
                bytes,
            } => {
                self.senders
                    .get(&end)
                    .ok_or(gone)?
                    .ring_bytes(position, bytes, out);
            }
            Body::Chunk { end, chunk } => {
                let sender = self.senders.get_mut(&end).ok_or(gone)?;
                let part = sender.chunk(chunk.sequence, chunk.offset, chunk.bytes)?;
                out.extend_from_slice(part);
            }
            Body::Write { end, chunk, memory } => {
                ensure!(out.len() == start, "a write has a head");
                let sender = self.senders.get_mut(&end).ok_or(gone)?;
                let part = sender.chunk(chunk.sequence, chunk.offset, chunk.bytes)?;
                let (sequence, offset) = (chunk.sequence, chunk.offset);
                write([WRITE, memory.address(), sequence, offset], part, out);
                *arrival_offset = (*arrival_offset + out.len() - start) % BLOCK_ALIGNMENT;
                writes.push_back(*behind + out.len() as u64);
                return Ok(true);
            }
            Body::EagerBlock {
                end,
                chunk,
                memory,
                word,
            } => {
                let sender = self.senders.get_mut(&end).ok_or(gone)?;
                let part = sender.chunk(chunk.sequence, chunk.offset, chunk.bytes)?;
                let head = out.split_off(start);
                write([WRITE, memory.address(), 0, BLOCK], part, out);
                writes.push_back(*behind + out.len() as u64);
                let Some(word) = word else {
                    ensure!(head.is_empty(), "a write has a head");
                    *arrival_offset = (*arrival_offset + out.len() - start) % BLOCK_ALIGNMENT;
                    return Ok(true);
                };
                // This is the message that a device sends behind the write.
                let start = out.len();
                out.extend_from_slice(&head);
                sender.ring_bytes(word.position, word.bytes, out);
                self.finish_frame(start)?;
                return Ok(true);
            }
        }
        self.finish_frame(start)?;
        Ok(true)
    }

    /// Sends a frame twice if it may be repeated, which must change nothing.
    fn repeat(&mut self, start: usize) {
        let frame = &self.outbound.bytes[start..];
        let is_harmless = match FrameHeader::parse(frame) {
            Ok(Some(header)) if header.kind == FrameKind::Control => {
                let body = &frame[header.body_offset()..header.length as usize];
                let control = Control::decode(body);
                matches!(
                    control,
                    Ok(Control::Ask { .. }
                        | Control::Want { .. }
                        | Control::Recall { .. }
                        | Control::Surrender { .. })
                ) || body.is_empty()
            }
            _ => false,
        };
        // Over a carriage of buffers, the repeated frame would take one, too.
        let may_repeat = self.wires.carriage == Carriage::Stream && is_harmless;
        if may_repeat && self.random.chance(self.options.duplicate_per_mille) {
            self.outbound.bytes.extend_from_within(start..);
            let bytes = self.outbound.bytes.len() - start;
            self.outbound.arrival_offset =
                (self.outbound.arrival_offset + bytes / 2) % BLOCK_ALIGNMENT;
            self.carried.frames_out += 1;
            self.counts.faults.count(Fault::Duplicate, true);
        }
    }

    /// Pads a frame and checks it.
    fn finish_frame(&mut self, start: usize) -> Checked {
        let Outbound {
            bytes: out,
            arrival_offset,
            ..
        } = &mut self.outbound;
        let carriage = self.wires.carriage;
        out.resize(
            start + (out.len() - start).next_multiple_of(FRAME_ALIGNMENT),
            0,
        );
        let header = FrameHeader::parse(&out[start..])
            .map_err(|error| format!("a frame that goes out is malformed: {error}"))?
            .ok_or("a frame that goes out has no header")?;
        ensure!(
            header.padded_length() == out.len() - start,
            "a frame of {} bytes goes out as {header:?}",
            out.len() - start
        );
        *arrival_offset = (*arrival_offset + header.padded_length()) % BLOCK_ALIGNMENT;
        ensure!(
            header.padded_length() <= carriage.frame_bytes(),
            "a frame of {} bytes goes out, the longest is {}",
            header.padded_length(),
            carriage.frame_bytes()
        );
        self.carried.charged_out += carriage.cost(&header);
        self.counts.frames += 1;
        self.carried.frames_out += 1;
        self.note(u64::from(header.length) << 32 | u64::from(header.channel));
        self.note(u64::from(header.sequence) << 8 | u64::from(header.pad));
        Ok(())
    }

    /// Reads and handles arrived bytes. Returns whether there were any.
    pub(crate) fn receive(&mut self, now: u64, wire: &mut Wire, ledger: &Ledger) -> Checked<bool> {
        let before = self.inbound.bytes.len();
        wire.read(now, &mut self.inbound.bytes);
        let any = self.inbound.bytes.len() > before;
        self.handle_inbound(ledger)?;
        Ok(any)
    }

    /// Handles all bytes that were read.
    pub(super) fn handle_inbound(&mut self, ledger: &Ledger) -> Checked {
        while self.parse_one(ledger)? {
            self.handle_events(ledger)?;
        }
        let parsed = std::mem::take(&mut self.inbound.parsed);
        self.inbound.bytes.drain(..parsed);
        Ok(())
    }

    /// Handles one frame. Returns false if none is complete.
    fn parse_one(&mut self, ledger: &Ledger) -> Checked<bool> {
        if let Some(chunk) = self.inbound.chunk.take() {
            self.continue_chunk(chunk, ledger)?;
            if self.inbound.chunk.is_some() {
                return Ok(false);
            }
        }
        if let Some(write) = self.parse_write() {
            self.inbound.chunk = Some(write);
            return Ok(true);
        }
        let bytes = self.inbound.unparsed();
        if bytes
            .first_chunk()
            .is_some_and(|word| u64::from_le_bytes(*word) >= FIRST_MARK)
        {
            return Ok(false);
        }
        let header = FrameHeader::parse(bytes).map_err(|error| error.to_string())?;
        let Some(header) = header else {
            return Ok(false);
        };
        let needed = header.handled_length();
        if bytes.len() < needed {
            return Ok(false);
        }
        if header.kind == FrameKind::Control {
            self.last_control.clear();
            self.last_control.extend_from_slice(&bytes[..needed]);
        }
        let carriage = self.wires.carriage;
        self.carried.charged_in += carriage.cost(&header);
        self.carried.frames_in += 1;
        let arrival_offset = carriage.arrival_offset(self.inbound.arrival_offset);
        self.inbound.arrival_offset = arrival_offset;
        let bytes = self.inbound.unparsed();
        let frame = &bytes[..needed.min(header.length as usize)];
        // Half of the frames that could be lone records are handled as such at the first check.
        let lone = match header.sequence % 2 {
            0 => self.session.handle_lone_record(frame, arrival_offset),
            _ => None,
        };
        if let Some(lone) = lone {
            self.counts.lone_in += 1;
            let body = &frame[lone.offset..][..lone.bytes];
            let (arrival_offset, sequence) = (arrival_offset + lone.offset, lone.sequence);
            let receiver = self.receivers.get_mut(&lone.end);
            let receiver = receiver.ok_or("a record for no receiver")?;
            receiver.take_records(sequence, 1, arrival_offset, body, ledger)?;
            self.inbound.consume(needed);
            return Ok(true);
        }
        let arrival = self
            .session
            .handle_frame(&header, frame, arrival_offset)
            .map_err(|misbehaved| format!("an honest peer is accused: {misbehaved}"))?;
        let fill = header.padded_length() - header.length as usize;
        match arrival {
            Arrival::Nothing => {}
            Arrival::Unwanted if header.kind == FrameKind::Chunk => {
                let left = header.body_bytes();
                self.inbound.chunk = Some(ChunkIn {
                    place: Place::Nowhere,
                    is_written: false,
                    is_last: false,
                    left,
                    fill,
                });
            }
            Arrival::Unwanted => {}
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                let body = &frame[offset..offset + bytes];
                let receiver = self
                    .receivers
                    .get_mut(&end)
                    .ok_or("records for no receiver")?;
                receiver.take_records(
                    first_sequence,
                    records,
                    arrival_offset + offset,
                    body,
                    ledger,
                )?;
                self.take_landed(ledger)?;
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                let place = Place::Message {
                    end,
                    sequence: chunk.sequence,
                    offset: chunk.offset,
                };
                self.inbound.chunk = Some(ChunkIn {
                    place,
                    is_written: false,
                    is_last: complete,
                    left: chunk.bytes,
                    fill,
                });
            }
            Arrival::Written { end, sequence } => {
                let receiver = self.receivers.get_mut(&end);
                let receiver = receiver.ok_or("a message for no receiver is written")?;
                receiver.written(sequence)?;
                self.session.handle_large_complete(end);
                self.counts.large += 1;
                self.counts.written += 1;
            }
        }
        self.inbound.consume(needed);
        Ok(true)
    }

    /// Parses the head of a write, if one is here. Its bytes go to the place of a chunk's.
    fn parse_write(&mut self) -> Option<ChunkIn> {
        let bytes = self.inbound.unparsed().first_chunk::<WRITE_HEAD_BYTES>()?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mark = words.next().filter(|mark| *mark >= FIRST_MARK)?;
        let mut word = || words.next().unwrap_or_default();
        let (address, sequence, offset, left) = (word(), word(), word(), word() as usize);
        self.inbound.consume(WRITE_HEAD_BYTES);
        if mark == READ {
            self.reading.asked(address, offset, sequence as usize);
        }
        let place = match offset {
            _ if mark == READ => Place::Nowhere,
            _ if mark == ANSWER => Place::Read { offset },
            BLOCK => Place::Block {
                address,
                is_first: true,
            },
            _ => Place::Message {
                end: address as u32,
                sequence,
                offset,
            },
        };
        Some(ChunkIn {
            place,
            is_written: true,
            is_last: false,
            left,
            fill: left.next_multiple_of(FRAME_ALIGNMENT) - left,
        })
    }

    /// Delivers the last control frame again, unchanged or with other bytes. The session may
    /// believe it or not, but must stay sound. If it believes wrong bytes, its state is no longer
    /// the true one.
    pub(crate) fn mishear(&mut self) -> Checked {
        let mut frame = std::mem::take(&mut self.last_control);
        if frame.is_empty() || matches!(self.stage, Stage::Suspended | Stage::Before) {
            return Ok(());
        }
        for _ in 0..self.random.below(4) {
            let at = self.random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << self.random.below(8);
        }
        self.counts.faults.count(Fault::Malformed, true);
        let header = FrameHeader::parse(&frame).ok().flatten();
        let Some(header) = header.filter(|header| header.padded_length() == frame.len()) else {
            return Ok(());
        };
        let _ = self
            .session
            .handle_frame(&header, &frame[..header.length as usize], 0);
        while self.session.poll_event().is_some() {}
        let mut rings = Rings(&mut self.senders);
        for _ in 0..FRAMES_MISHEARD {
            if self
                .session
                .poll_transmit(&mut rings, 0, &mut frame)
                .is_none()
            {
                break;
            }
        }
        while self.session.poll_event().is_some() {}
        self.check_footprint()
    }

    /// Takes the available bytes of a chunk, and keeps the chunk if more are to come.
    fn continue_chunk(&mut self, mut chunk: ChunkIn, ledger: &Ledger) -> Checked {
        let here = self.inbound.unparsed().len().min(chunk.left);
        let bytes = &self.inbound.bytes[self.inbound.parsed..][..here];
        let is_late = chunk.is_written && here > 0 && self.is_behind;
        self.counts.faults.count(Fault::LateWrite, is_late);
        match &mut chunk.place {
            Place::Message {
                end,
                sequence,
                offset,
            } if here > 0 => {
                let receiver = self.receivers.get_mut(end);
                if let Some(receiver) = receiver.filter(|receiver| !receiver.is_closed) {
                    receiver.place(*sequence, *offset, bytes, ledger)?;
                    *offset += here as u64;
                    if here == chunk.left && chunk.is_last {
                        self.session.handle_large_complete(*end);
                        self.counts.large += 1;
                    }
                }
            }
            Place::Block { address, is_first } if here > 0 => {
                self.eager_blocks.place(*address, bytes, *is_first)?;
                *is_first = false;
            }
            Place::Read { offset } if here > 0 => {
                let bytes = bytes.to_vec();
                self.take_read(*offset, &bytes, here == chunk.left, ledger)?;
                *offset += here as u64;
            }
            _ => {}
        }
        self.inbound.consume(here);
        chunk.left -= here;
        let filled = if chunk.left == 0 {
            self.inbound.unparsed().len().min(chunk.fill)
        } else {
            0
        };
        self.inbound.consume(filled);
        chunk.fill -= filled;
        if chunk.left + chunk.fill > 0 {
            self.inbound.chunk = Some(chunk);
        }
        self.handle_events(ledger)
    }

    /// Returns whether everything that is due is on the wire.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbound.bytes.is_empty()
    }

    /// Appends a request to read, or the answer to one.
    pub(super) fn put(&mut self, words: [u64; 4], bytes: &[u8]) {
        let Outbound {
            bytes: out,
            arrival_offset,
            ..
        } = &mut self.outbound;
        let start = out.len();
        write(words, bytes, out);
        *arrival_offset = (*arrival_offset + out.len() - start) % BLOCK_ALIGNMENT;
    }
}

/// Appends a write to the outgoing bytes.
fn write(words: [u64; 4], bytes: &[u8], out: &mut Vec<u8>) {
    for word in words.into_iter().chain([bytes.len() as u64]) {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(FRAME_ALIGNMENT), 0);
}

/// The first word of a write on the simulated wire; as the head of a frame it would be malformed.
const WRITE: u64 = u64::MAX;
/// The first word of a read: address, length and offset follow.
pub(super) const READ: u64 = u64::MAX - 1;
/// The first word of the answer to a read.
pub(super) const ANSWER: u64 = u64::MAX - 2;
/// No other word begins with as many ones.
const FIRST_MARK: u64 = ANSWER;
/// The offset that marks a write to a block.
const BLOCK: u64 = u64::MAX;
/// Bytes of a write's head: the mark, address, sequence, offset and length.
const WRITE_HEAD_BYTES: usize = 5 * 8;
/// The most frames that a session may send in response to a wrong message.
const FRAMES_MISHEARD: usize = 100;
/// Bytes that are built ahead while the wire takes no more.
const FULL_BYTES: usize = 1 << 16;
