//! The receiving half of a stream: frames are parsed where they arrived and handed to the
//! receivers of their channels, who read them in place.

use std::{
    io::{self, IoSliceMut},
    mem,
    ptr::{self, NonNull},
    slice,
};

use ibex_protocol::{
    format::{
        frame::{BLOCK_ALIGNMENT, FrameHeader, FrameKind, MAX_FRAME_BYTES},
        frame_check::{
            CHECK_BYTES, CHECKED_HEADER_BYTES, CheckedHead, Coverage, DamagedFrame, verify_body,
            verify_head,
        },
    },
    session::{Arrival, PeerMisbehaved},
    transfer::rendezvous::Chunk,
};
use ibex_ring::memory::BlockLease;

use super::{
    Link, Phase, Wires,
    cut_frame::Finding,
    receivers::{Arrived, Fault, ReceiveLink},
    stream::Stream,
    turn_share::TurnShare,
};
use crate::{
    connection::{Context, Tools},
    session::EndCause,
    stream::{
        RecordLayer,
        inbound::{ChunkInProgress, Inbound},
    },
};

/// Bytes to ask of the socket behind a chunk: the next header and nothing more, since
/// what follows is most likely another chunk.
const BEHIND_CHUNK: usize = CHECKED_HEADER_BYTES;
/// Bytes to ask of the socket while a chunk may come: what has arrived of it in the
/// block has to be copied.
const BEFORE_CHUNK: usize = 4 << 10;
/// A read that brought less than this drained the socket, or as good as.
const SHORT_READ: usize = 2 << 10;
/// Reads that one turn makes at most, beside what a [`TurnShare`] allows.
const READS_PER_TURN: usize = 16;

impl Link {
    /// Reads what the socket has and hands it on.
    pub(super) fn receive_stream(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        if self.phase == Phase::Gone {
            return false;
        }
        let mut share = TurnShare::new();
        let mut progress = self.takes_leftover() && self.parse(&mut share, tools, context);
        if self.is_suspended() || self.phase == Phase::Gone {
            return true;
        }
        if share.is_spent() || !self.readable && !self.reads_every_turn() {
            return progress;
        }
        for _ in 0..READS_PER_TURN {
            match self.read_once(&mut share, tools) {
                Ok(Some(0)) => {
                    let cause = EndCause::lost("it closed the connection without saying goodbye");
                    self.wires_broke(cause, tools, context);
                    return true;
                }
                Ok(Some(bytes)) => {
                    progress = true;
                    self.parse(&mut share, tools, context);
                    if self.phase == Phase::Gone || self.is_suspended() {
                        return true;
                    }
                    if bytes < SHORT_READ && !self.is_in_chunk() && !self.has_unread() {
                        // The socket was drained: asking again would cost a system call
                        // before the application sees what came.
                        self.readable = false;
                        return true;
                    }
                    if share.is_spent() {
                        break;
                    }
                }
                Ok(None) => {
                    self.readable = false;
                    if let Some(cause) = self.broken.take() {
                        self.wires_broke(cause, tools, context);
                    }
                    return progress;
                }
                Err(error) => {
                    let why = format!("reading from its connection failed: {error}");
                    let cause = self.broken.take();
                    let cause = cause.unwrap_or_else(|| EndCause::lost(why));
                    self.wires_broke(cause, tools, context);
                    return true;
                }
            }
        }
        self.readable = true;
        progress
    }

    /// One read; `None` if the socket has nothing.
    fn read_once(&mut self, share: &mut TurnShare, tools: &mut Tools) -> io::Result<Option<usize>> {
        let Wires::Stream(Stream { inbound, layer, .. }) = &mut self.wires else {
            return Ok(None);
        };
        let moved = inbound
            .make_room(&mut tools.blocks)
            .map_err(io::Error::other)?;
        let counters = &self.shared.counters;
        counters.bytes_copied.add(moved as u64);
        let read = match &mut inbound.chunk {
            None => {
                let expects_chunk = self.receivers.values().any(ReceiveLink::expects_chunk);
                let limit = if expects_chunk {
                    BEFORE_CHUNK
                } else {
                    usize::MAX
                };
                let mut into = [IoSliceMut::new(inbound.free(limit))];
                layer.read(&self.tcp, &mut into)
            }
            Some(chunk) => {
                // SAFETY: `at..at + left` is the rest of the chunk's place in memory that
                // was granted for it and that nobody reads before it is complete.
                let place = unsafe { slice::from_raw_parts_mut(chunk.at.as_ptr(), chunk.left) };
                let behind = chunk.fill + BEHIND_CHUNK;
                let mut into = [
                    IoSliceMut::new(place),
                    IoSliceMut::new(inbound.free(behind)),
                ];
                layer.read(&self.tcp, &mut into)
            }
        };
        match read {
            Ok(bytes) => {
                counters.reads.add(1);
                match self.local {
                    Some(_) => counters.control_bytes_received.add(bytes as u64),
                    None => counters.bytes_received.add(bytes as u64),
                }
                share.take_bytes(arrived(inbound, bytes));
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.empty_reads.add(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Tells whether the record layer has bytes that the socket does not tell of.
    fn has_unread(&self) -> bool {
        matches!(&self.wires, Wires::Stream(stream) if stream.layer.has_unread())
    }

    fn is_in_chunk(&self) -> bool {
        matches!(&self.wires, Wires::Stream(stream) if stream.inbound.chunk.is_some())
    }

    /// Hands on every whole frame that is in the block, as far as the session's share goes.
    fn parse(
        &mut self,
        share: &mut TurnShare,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        let mut any = false;
        loop {
            if share.is_spent() {
                self.leave_rest(tools);
                return any;
            }
            match self.parse_one(share, tools, context) {
                Ok(true) => any = true,
                Ok(false) => return any,
                Err(Fault::Damage(damage)) => {
                    self.frame_is_damaged(damage, tools, context);
                    return any;
                }
                Err(fault) => {
                    self.fail(&fault.to_string(), context);
                    return any;
                }
            }
            self.handle_events(context);
            if self.phase == Phase::Gone || self.is_parsed() {
                return any;
            }
        }
    }

    /// Nothing that comes over these wires can be believed any more; what was handed on before
    /// was right. Over others, everything behind that comes again.
    #[cold]
    fn frame_is_damaged(
        &mut self,
        damage: DamagedFrame,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        let errors = &self.shared.counters.checksum_errors;
        errors.add(1);
        self.session.found_damage();
        if let Some(rewiring) = &mut self.rewiring {
            rewiring.found_damage = true;
        }
        let what_next = match self.rewiring {
            Some(_) => "the session goes on over a new connection, and nothing is lost",
            None => "the session cannot go on over a new connection",
        };
        if errors.get().is_power_of_two() {
            tracing::warn!(
                peer = %self.shared.peer().address, %damage, so_far = errors.get(),
                "bytes were damaged on the way from a peer; {what_next}"
            );
        }
        let why = format!("{}; {what_next}", Fault::Damage(damage));
        let cause = self.broken.take();
        let cause = cause.unwrap_or_else(|| EndCause::lost(why));
        self.wires_broke(cause, tools, context);
    }

    /// Asks the peer something if a frame of its stays cut. Returns whether another look is due.
    pub(super) fn look_for_cut_frame(&mut self) -> bool {
        let Wires::Stream(stream) = &mut self.wires else {
            return false;
        };
        let counters = &self.shared.counters;
        let (bytes, frames) = (counters.bytes_received.get(), stream.inbound.frames);
        let is_in_frame = !stream.has_leftover && stream.inbound.is_in_frame();
        match stream.cut_frame.look(is_in_frame, bytes, frames) {
            Finding::Whole => false,
            Finding::Cut => true,
            Finding::Ask(times) => {
                self.session.query(times);
                true
            }
        }
    }

    /// The next turn goes on with what has arrived, and others come first.
    #[cold]
    fn leave_rest(&mut self, tools: &mut Tools) {
        if let Wires::Stream(stream) = &mut self.wires {
            stream.has_leftover = true;
        }
        tools.share_is_spent = true;
    }

    /// Tells whether bytes are here that need no read.
    #[inline]
    pub(crate) fn has_leftover(&self) -> bool {
        let Wires::Stream(stream) = &self.wires else {
            return false;
        };
        stream.has_leftover && self.phase != Phase::Gone
    }

    /// The same, once: somebody looks.
    fn takes_leftover(&mut self) -> bool {
        match &mut self.wires {
            Wires::Stream(stream) => mem::take(&mut stream.has_leftover),
            Wires::Pair(_) | Wires::None => false,
        }
    }

    /// Whether nothing has arrived that was not handed on, and nothing waits for more.
    fn is_parsed(&self) -> bool {
        match &self.wires {
            Wires::Stream(Stream { inbound, .. }) => {
                inbound.chunk.is_none() && inbound.unparsed().is_empty()
            }
            Wires::Pair(_) | Wires::None => true,
        }
    }

    /// Hands on one frame; false if none is whole.
    fn parse_one(
        &mut self,
        share: &mut TurnShare,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> Result<bool, Fault> {
        let Wires::Stream(Stream { inbound, .. }) = &mut self.wires else {
            return Ok(false);
        };
        if let Some(chunk) = inbound.chunk.take_if(|chunk| chunk.left == 0) {
            chunk.verify()?;
            inbound.skip = chunk.fill;
            if chunk.complete {
                self.large_arrived(chunk.end, 0, context);
            }
        }
        let Wires::Stream(Stream {
            inbound, payloads, ..
        }) = &mut self.wires
        else {
            return Ok(false);
        };
        if inbound.chunk.is_some() {
            return Ok(false);
        }
        if inbound.skip > 0 {
            let skipped = inbound.skip.min(inbound.unparsed().len());
            inbound.consume(skipped);
            inbound.skip -= skipped;
            if inbound.skip > 0 {
                return Ok(false);
            }
        }
        let bytes = inbound.unparsed();
        let Some(head) = verify_head(inbound.frames, bytes)? else {
            return Ok(false);
        };
        let CheckedHead {
            body_check,
            frame: bytes,
        } = head;
        let Some(header) = FrameHeader::parse(bytes).map_err(PeerMisbehaved::from)? else {
            return Ok(false);
        };
        let needed = header.handled_length();
        if bytes.len() < needed {
            return Ok(false);
        }
        let channel = header.channel;
        let alignment = || self.session.alignment_of_arrivals(channel);
        let coverage = Coverage::of(header.kind, *payloads, alignment)
            .ok_or(PeerMisbehaved::UnknownChannel { channel })?;
        let landing = (inbound.parsed() + CHECK_BYTES) % BLOCK_ALIGNMENT;
        let frame = &bytes[..needed.min(header.length as usize)];
        if header.kind != FrameKind::Chunk {
            verify_body(&header, frame, coverage, body_check)?;
        }
        let arrival = self.session.handle_frame(&header, frame, landing)?;
        inbound.consume(CHECK_BYTES);
        inbound.frames += 1;
        self.shared.counters.frames_received.add(1);
        share.take_frame(needed);
        match arrival {
            Arrival::Nothing => inbound.consume(needed),
            Arrival::Unwanted => {
                inbound.consume(needed);
                inbound.skip = header.padded_length() - needed;
            }
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                let block = inbound.block().clone();
                let arrived = Arrived {
                    // SAFETY: the frame is whole and inside the block.
                    base: unsafe { block.base().add(inbound.parsed() + offset) },
                    bytes,
                    last_sequence: first_sequence + records - 1,
                    time: 0,
                    memory: BlockLease::new(block),
                    refills: inbound.refills(),
                    of_block: bytes,
                    is_scarce: false,
                };
                inbound.consume(needed);
                self.place_records(end, arrived, tools, context)?;
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                inbound.consume(needed);
                let until = chunk.offset + chunk.bytes as u64;
                self.large_moves(end, chunk.sequence, until, context);
                let check = (coverage, body_check);
                self.begin_chunk(end, chunk, &header, complete, check);
            }
            Arrival::Written { .. } => unreachable!("no memory is granted over a stream"),
        }
        Ok(true)
    }

    /// A chunk's header is through; its bytes go straight into their place, except those
    /// that are in the block already.
    fn begin_chunk(
        &mut self,
        end: u32,
        chunk: Chunk,
        header: &FrameHeader,
        complete: bool,
        check: (Coverage, u32),
    ) {
        let Wires::Stream(Stream { inbound, .. }) = &mut self.wires else {
            return;
        };
        let body = header.body_bytes();
        let fill = header.padded_length() - header.length as usize;
        let place = self
            .receivers
            .get(end)
            .and_then(|receiver| receiver.place_of(chunk.sequence, chunk.offset, body));
        let Some(place) = place else {
            // The handle is gone since.
            inbound.skip = body + fill;
            return;
        };
        let here = inbound.unparsed();
        let copied = here.len().min(body);
        // SAFETY: `copied` bytes at both sides, of different memory.
        unsafe { ptr::copy_nonoverlapping(here.as_ptr(), place.as_ptr(), copied) };
        inbound.consume(copied);
        let copied_bytes = &self.shared.counters.bytes_copied;
        copied_bytes.add(copied as u64);
        let left = body - copied;
        if left > 0 {
            inbound.step_over(left);
        }
        // SAFETY: inside the chunk's place, or at its end.
        let at: NonNull<u8> = unsafe { place.add(copied) };
        inbound.chunk = Some(ChunkInProgress {
            end,
            bytes: body,
            at,
            left,
            fill,
            complete,
            check,
        });
    }

    /// The handle that a chunk is for is gone, and its memory goes: what is still to come
    /// is skipped.
    pub(super) fn abandon_chunk(&mut self, end: u32) {
        if let Wires::Stream(Stream { inbound, .. }) = &mut self.wires
            && let Some(chunk) = inbound.chunk.take_if(|chunk| chunk.end == end)
        {
            inbound.skip = chunk.left + chunk.fill;
        }
    }
}

/// Splits what a read brought between a chunk's place and the block. Returns how much of it
/// is in the place.
fn arrived(inbound: &mut Inbound, bytes: usize) -> usize {
    let mut rest = bytes;
    if let Some(chunk) = &mut inbound.chunk {
        let placed = rest.min(chunk.left);
        // SAFETY: stays inside the chunk's place.
        chunk.at = unsafe { chunk.at.add(placed) };
        chunk.left -= placed;
        rest -= placed;
    }
    inbound.arrived(rest);
    bytes - rest
}

const _: () = assert!(MAX_FRAME_BYTES > BEFORE_CHUNK);
