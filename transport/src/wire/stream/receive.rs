//! The receiving half of a stream. Frames are parsed in place and handed to the receivers of their
//! channels, which read them in place too.

use std::{
    io::{self, IoSliceMut},
    mem,
    ptr::{self, NonNull},
    slice,
};

use super::{
    RecordLayer, StreamWire,
    inbound::{ChunkInProgress, Inbound},
};
use crate::wire::{
    Arrived, FrameRefusal, Frames, Received, Tools, WireSocket, turn_share::TurnShare,
};
use ibex_protocol::{
    format::{
        frame::{BLOCK_ALIGNMENT, FrameHeader, FrameKind, MAX_FRAME_BYTES},
        frame_check::{
            CHECK_BYTES, CHECKED_HEADER_BYTES, CheckedHead, Coverage, verify_apart, verify_body,
            verify_head,
        },
    },
    session::{Arrival, PeerMisbehaved},
    transfer::rendezvous::Chunk,
};

/// Bytes to ask of the socket after a chunk: the next header only, because the next frame is most
/// likely another chunk.
const BEHIND_CHUNK: usize = CHECKED_HEADER_BYTES;
/// Bytes to ask of the socket while a chunk may come, because bytes of the chunk that arrive in the
/// block have to be copied.
const BEFORE_CHUNK: usize = 4 << 10;
/// A read that brought less than this drained the socket, or nearly so.
const SHORT_READ: usize = 2 << 10;
/// Most reads in one turn, in addition to the limits of the [`TurnShare`].
const READS_PER_TURN: usize = 16;

/// What one read of the socket brought.
struct Read {
    bytes: usize,
    /// The socket had no more.
    is_all: bool,
}

impl StreamWire {
    /// Reads from the socket and hands frames on. The error is the reason why a frame was refused.
    pub(super) fn read<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<Received, Received> {
        if frames.is_over() {
            return Ok(Received::Nothing);
        }
        let mut share = TurnShare::new();
        self.layer.begin_turn();
        let mut any =
            mem::take(&mut self.has_leftover) && self.parse_leftover(&mut share, frames, tools)?;
        if frames.is_over() {
            return Ok(Received::Something);
        }
        if !share.is_spent() && (socket.readable || self.path.reads_every_turn()) {
            for _ in 0..READS_PER_TURN {
                match self.read_once(socket, &mut share, frames, tools) {
                    Ok(Some(Read { bytes: 0, .. })) => return Ok(self.layer.ended()),
                    Ok(Some(read)) => {
                        any = true;
                        self.parse(&mut share, frames, tools)?;
                        if frames.is_over() {
                            return Ok(Received::Something);
                        }
                        let is_short = read.bytes < SHORT_READ && self.inbound.chunk.is_none();
                        if is_short && !self.layer.has_unread() {
                            // The socket was drained, or nearly so: asking again would cost a system
                            // call before the application sees the arrived messages.
                            socket.has_read(false, read.is_all);
                            return Ok(Received::Something);
                        }
                        if share.is_spent() {
                            break;
                        }
                    }
                    Ok(None) if self.layer.is_share_spent() => {
                        self.leave_rest(tools);
                        break;
                    }
                    Ok(None) => {
                        socket.is_drained();
                        return Ok(Received::Drained { any });
                    }
                    Err(error) => return Ok(Received::Failed(error)),
                }
            }
            socket.has_read(true, false);
        }
        Ok(match any {
            true => Received::Something,
            false => Received::Nothing,
        })
    }

    /// Hands on frames of bytes that arrived earlier.
    fn parse_leftover<F: Frames>(
        &mut self,
        share: &mut TurnShare,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, Received> {
        let bytes = mem::take(&mut self.behind_handshake);
        if !bytes.is_empty() {
            let inbound = &mut self.inbound;
            let moved = inbound.make_room(&mut tools.blocks);
            moved.map_err(|error| Received::Failed(io::Error::other(error)))?;
            inbound.free(bytes.len()).copy_from_slice(&bytes);
            inbound.arrived(bytes.len());
        }
        self.parse(share, frames, tools)
    }

    /// Reads once; returns `None` if the socket has no bytes.
    fn read_once<F: Frames>(
        &mut self,
        socket: &WireSocket,
        share: &mut TurnShare,
        frames: &F,
        tools: &mut Tools,
    ) -> io::Result<Option<Read>> {
        let inbound = &mut self.inbound;
        let moved = inbound
            .make_room(&mut tools.blocks)
            .map_err(io::Error::other)?;
        let counters = frames.counters();
        counters.bytes_copied.add(moved as u64);
        let rest = place_of_rest(inbound, frames).zip(inbound.chunk.as_ref());
        let (read, asked) = match rest {
            None => {
                let limit = match frames.expects_chunk() {
                    true => BEFORE_CHUNK,
                    false => usize::MAX,
                };
                let free = inbound.free(limit);
                let asked = free.len();
                let read = self
                    .layer
                    .read(socket.stream(), &mut [IoSliceMut::new(free)]);
                (read, asked)
            }
            Some((place, chunk)) => {
                // SAFETY: this is the rest of the chunk's place, in memory that was granted for it
                // and that no thread reads before the message is complete.
                let place = unsafe { slice::from_raw_parts_mut(place.as_ptr(), chunk.left) };
                let behind = inbound.free(chunk.fill + BEHIND_CHUNK);
                let asked = place.len() + behind.len();
                let mut into = [IoSliceMut::new(place), IoSliceMut::new(behind)];
                (self.layer.read(socket.stream(), &mut into), asked)
            }
        };
        match read {
            Ok(bytes) => {
                counters.reads.add(1);
                self.path.count_received(bytes, counters);
                share.take_bytes(arrived(inbound, bytes));
                let is_all = self.layer.is_all(bytes, asked);
                Ok(Some(Read { bytes, is_all }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.empty_reads.add(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Hands on every complete frame in the block, within the session's share.
    fn parse<F: Frames>(
        &mut self,
        share: &mut TurnShare,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, Received> {
        let mut any = false;
        loop {
            if share.is_spent() {
                self.leave_rest(tools);
                return Ok(any);
            }
            match self.parse_one(share, frames, tools) {
                Ok(true) => any = true,
                Ok(false) => return Ok(any),
                Err(fault) => return Err(Received::Refused(Box::new(fault))),
            }
            frames.events();
            if frames.is_over() || self.is_parsed() {
                return Ok(any);
            }
        }
    }

    /// Leaves the rest for the next turn, so that other sessions come first.
    #[cold]
    fn leave_rest(&mut self, tools: &mut Tools) {
        self.has_leftover = true;
        tools.share_is_spent = true;
    }

    /// Returns whether all arrived bytes were handed on and no frame is incomplete.
    fn is_parsed(&self) -> bool {
        self.inbound.chunk.is_none() && self.inbound.unparsed().is_empty()
    }

    /// Hands on one frame; returns false if none is complete.
    fn parse_one<F: Frames>(
        &mut self,
        share: &mut TurnShare,
        frames: &mut F,
        tools: &mut Tools,
    ) -> Result<bool, FrameRefusal> {
        let inbound = &mut self.inbound;
        let is_here = place_of_rest(inbound, frames).is_some();
        if let Some(chunk) = inbound.chunk.take_if(|chunk| is_here && chunk.left == 0) {
            let place = frames.place(chunk.end, chunk.sequence, chunk.offset, chunk.bytes);
            if let Some(place) = place {
                // SAFETY: these bytes of the chunk's place are written, and no other reference to
                // them exists before the message is complete.
                let bytes = unsafe { slice::from_raw_parts(place.as_ptr(), chunk.bytes) };
                let (coverage, check) = chunk.check;
                verify_apart(bytes, coverage, check)?;
            }
            inbound.skip = chunk.fill;
            if chunk.complete {
                frames.chunk_done(chunk.end, 0);
            }
        }
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
        let session = frames.session();
        let alignment = || session.ends.alignment_of_arrivals(channel);
        let coverage = Coverage::of(header.kind, self.payloads, alignment)
            .ok_or(PeerMisbehaved::UnknownChannel { channel })?;
        let arrival_offset = (inbound.parsed() + CHECK_BYTES) % BLOCK_ALIGNMENT;
        let frame = &bytes[..needed.min(header.length as usize)];
        if header.kind != FrameKind::Chunk {
            verify_body(&header, frame, coverage, body_check)?;
        }
        let arrival = session.handle_frame(&header, frame, arrival_offset)?;
        inbound.consume(CHECK_BYTES);
        inbound.frames += 1;
        frames.counters().frames_received.add(1);
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
                let last = first_sequence + records - 1;
                let arrived = Arrived::in_block(inbound, offset, bytes, last);
                inbound.consume(needed);
                frames.records(end, arrived, tools)?;
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                inbound.consume(needed);
                let until = chunk.offset + chunk.bytes as u64;
                frames.chunk_moves(end, chunk.sequence, until);
                let check = (coverage, body_check);
                self.begin_chunk(end, chunk, &header, complete, check, frames);
            }
            Arrival::Written { .. } => unreachable!("no memory is granted over a stream"),
        }
        Ok(true)
    }

    /// Begins to read a chunk, whose header was parsed, directly into its place, except for the
    /// bytes that are in the block already.
    fn begin_chunk<F: Frames>(
        &mut self,
        end: u32,
        chunk: Chunk,
        header: &FrameHeader,
        complete: bool,
        check: (Coverage, u32),
        frames: &F,
    ) {
        let inbound = &mut self.inbound;
        let bytes = header.body_bytes();
        let fill = header.padded_length() - header.length as usize;
        let Some(place) = frames.place(end, chunk.sequence, chunk.offset, bytes) else {
            // The handle is gone by now.
            inbound.skip = bytes + fill;
            return;
        };
        let here = inbound.unparsed();
        let copied = here.len().min(bytes);
        // SAFETY: both sides have `copied` bytes, in different memory.
        unsafe { ptr::copy_nonoverlapping(here.as_ptr(), place.as_ptr(), copied) };
        inbound.consume(copied);
        frames.counters().bytes_copied.add(copied as u64);
        let left = bytes - copied;
        if left > 0 {
            inbound.step_over(left);
        }
        inbound.chunk = Some(ChunkInProgress {
            end,
            sequence: chunk.sequence,
            offset: chunk.offset,
            bytes,
            left,
            fill,
            complete,
            check,
        });
    }
}

/// Returns the destination of a chunk's missing bytes. If they are no longer wanted, they are
/// skipped.
fn place_of_rest<F: Frames>(inbound: &mut Inbound, frames: &F) -> Option<NonNull<u8>> {
    let chunk = inbound.chunk.as_ref()?;
    let place = frames.place(chunk.end, chunk.sequence, chunk.next(), chunk.left);
    if place.is_none() {
        inbound.skip = chunk.left + chunk.fill;
        inbound.chunk = None;
    }
    place
}

/// Splits the bytes of a read between a chunk's place and the block. Returns how many of them are
/// in the place.
fn arrived(inbound: &mut Inbound, bytes: usize) -> usize {
    let mut rest = bytes;
    if let Some(chunk) = &mut inbound.chunk {
        let placed = rest.min(chunk.left);
        chunk.left -= placed;
        rest -= placed;
    }
    inbound.arrived(rest);
    bytes - rest
}

const _: () = assert!(MAX_FRAME_BYTES > BEFORE_CHUNK);
