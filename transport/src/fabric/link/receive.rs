//! The receiving half of a link: frames are parsed where they arrived and handed to the
//! receivers of their channels, who read them in place.

use std::sync::atomic::Ordering;
use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use super::{Link, Phase, compact::Compact};
use crate::{
    channel::receive_end::{Frame, LargeArrival, LargePlace, ReceiveEnd},
    driver::{Context, LargeWanted, Tools},
    engine::{
        frame::{BLOCK_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES, MAX_FRAME_BYTES},
        session::{Arrival, PeerMisbehaved},
    },
    fabric::tcp::{RecordLayer, inbound::ChunkInProgress},
    memory::{LargeLease, MemoryError},
    ring::ArrivalWriter,
};

/// One receiving end in the engine.
pub(super) struct ReceiveLink {
    pub(super) end: Arc<ReceiveEnd>,
    pub(super) writer: Option<ArrivalWriter<Frame>>,
    /// Messages that arrived.
    arrived: u64,
    /// Large messages that were announced and are not complete.
    large: VecDeque<LargeIn>,
    compact: Compact,
    /// The peer's asked word as it was when we last answered (shm).
    pub(super) answered: u32,
    /// The last arming on behalf of a program that sleeps on the epoll set (shm).
    pub(super) armed_for_caller: u32,
    /// The ring was given to the handle (shm).
    pub(super) has_ring: bool,
}

struct LargeIn {
    sequence: u64,
    length: u64,
    memory: Option<LargeLease>,
}

/// Bytes to ask of the socket behind a chunk: the next header and nothing more, since
/// what follows is most likely another chunk.
const BEHIND_CHUNK: usize = HEADER_BYTES;
/// Bytes to ask of the socket while a chunk may come: what has arrived of it in the
/// block has to be copied.
const BEFORE_CHUNK: usize = 4 << 10;
/// A read that brought less than this drained the socket, or as good as.
const SHORT_READ: usize = 2 << 10;
/// Reads that one turn makes at most, so that sending and other sessions get theirs.
const READS_PER_TURN: usize = 16;

impl ReceiveLink {
    pub(super) fn new(end: Arc<ReceiveEnd>) -> Self {
        Self {
            end,
            writer: None,
            arrived: 0,
            large: VecDeque::new(),
            compact: Compact::default(),
            answered: 0,
            armed_for_caller: 0,
            has_ring: false,
        }
    }

    pub(super) fn forget_large(&mut self) {
        self.large.clear();
    }
}

impl Link {
    /// Reads what the socket has and hands it on.
    pub(super) fn receive(&mut self, tools: &mut Tools<'_>, context: &mut Context<'_>) -> bool {
        if self.phase == Phase::Gone {
            return false;
        }
        // Bytes that came behind the handshake need no read.
        let mut progress = self.parse(tools, context);
        let is_hot = self.readable || self.local.is_none();
        if !is_hot {
            return progress;
        }
        for _ in 0..READS_PER_TURN {
            match self.read_once(tools) {
                Ok(Some(0)) => {
                    self.fail("it closed the connection without saying goodbye", context);
                    return true;
                }
                Ok(Some(bytes)) => {
                    progress = true;
                    self.parse(tools, context);
                    if self.phase == Phase::Gone {
                        return true;
                    }
                    if bytes < SHORT_READ && self.inbound.chunk.is_none() {
                        // The socket was drained: asking again would cost a system call
                        // before the application sees what came.
                        self.readable = false;
                        return true;
                    }
                }
                Ok(None) => {
                    self.readable = false;
                    if let Some(why) = self.broken.take() {
                        self.fail(&why, context);
                    }
                    return progress;
                }
                Err(error) => {
                    let why = format!("reading from its connection failed: {error}");
                    self.fail(&self.broken.clone().unwrap_or(why), context);
                    return true;
                }
            }
        }
        self.readable = true;
        progress
    }

    /// One read; `None` if the socket has nothing.
    fn read_once(&mut self, tools: &mut Tools<'_>) -> io::Result<Option<usize>> {
        let moved = self
            .inbound
            .make_room(tools.blocks)
            .map_err(io::Error::other)?;
        let counters = &self.shared.counters;
        counters.bytes_copied.add(moved as u64);
        let read = match &mut self.inbound.chunk {
            None => {
                let expects_chunk = self.receivers.values().any(ReceiveLink::expects_chunk);
                let limit = if expects_chunk {
                    BEFORE_CHUNK
                } else {
                    usize::MAX
                };
                let mut into = [IoSliceMut::new(self.inbound.free(limit))];
                self.layer.read(&self.tcp, &mut into)
            }
            Some(chunk) => {
                // SAFETY: `at..at + left` is the rest of the chunk's place in memory that
                // was granted for it and that nobody reads before it is complete.
                let place = unsafe { slice::from_raw_parts_mut(chunk.at.as_ptr(), chunk.left) };
                let behind = chunk.fill + BEHIND_CHUNK;
                let mut into = [
                    IoSliceMut::new(place),
                    IoSliceMut::new(self.inbound.free(behind)),
                ];
                self.layer.read(&self.tcp, &mut into)
            }
        };
        match read {
            Ok(bytes) => {
                counters.reads.add(1);
                counters.bytes_received.add(bytes as u64);
                self.arrived(bytes);
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.empty_reads.add(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Splits what a read brought between a chunk's place and the block.
    fn arrived(&mut self, bytes: usize) {
        let mut rest = bytes;
        if let Some(chunk) = &mut self.inbound.chunk {
            let placed = rest.min(chunk.left);
            // SAFETY: stays inside the chunk's place.
            chunk.at = unsafe { chunk.at.add(placed) };
            chunk.left -= placed;
            rest -= placed;
        }
        self.inbound.arrived(rest);
    }

    /// Hands on every whole frame that is in the block.
    fn parse(&mut self, tools: &mut Tools<'_>, context: &mut Context<'_>) -> bool {
        let mut any = false;
        loop {
            match self.parse_one(tools, context) {
                Ok(true) => any = true,
                Ok(false) => return any,
                Err(Fault::Peer(misbehaved)) => {
                    self.fail(&format!("it broke the protocol: {misbehaved}"), context);
                    return any;
                }
                Err(Fault::Memory(error)) => {
                    self.fail(&error.to_string(), context);
                    return any;
                }
            }
            self.handle_events(context);
            if self.phase == Phase::Gone {
                return any;
            }
        }
    }

    /// Hands on one frame; false if none is whole.
    fn parse_one(
        &mut self,
        tools: &mut Tools<'_>,
        context: &mut Context<'_>,
    ) -> Result<bool, Fault> {
        if let Some(chunk) = &self.inbound.chunk {
            if chunk.left > 0 {
                return Ok(false);
            }
            self.chunk_arrived(context);
        }
        if self.inbound.skip > 0 {
            let skipped = self.inbound.skip.min(self.inbound.unparsed().len());
            self.inbound.consume(skipped);
            self.inbound.skip -= skipped;
            if self.inbound.skip > 0 {
                return Ok(false);
            }
        }
        let bytes = self.inbound.unparsed();
        let Some(header) = FrameHeader::parse(bytes).map_err(PeerMisbehaved::from)? else {
            return Ok(false);
        };
        let needed = match header.kind {
            FrameKind::Chunk => header.body_offset(),
            _ => header.padded_length(),
        };
        if bytes.len() < needed {
            return Ok(false);
        }
        let landing = self.inbound.parsed() % BLOCK_ALIGNMENT;
        let frame = &bytes[..needed.min(header.length as usize)];
        let arrival = self.session.handle_frame(&header, frame, landing)?;
        self.shared.counters.frames_received.add(1);
        match arrival {
            Arrival::Nothing => self.inbound.consume(needed),
            Arrival::Unwanted => {
                self.inbound.consume(needed);
                self.inbound.skip = header.padded_length() - needed;
            }
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                let at = self.inbound.parsed() + offset;
                self.place_records(end, at, bytes, first_sequence + records - 1, tools, context)?;
                self.inbound.consume(needed);
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                self.inbound.consume(needed);
                self.begin_chunk(end, chunk.sequence, chunk.offset, &header, complete);
            }
        }
        Ok(true)
    }

    /// Puts a frame's records in front of the receiver.
    fn place_records(
        &mut self,
        end: u32,
        at: usize,
        bytes: usize,
        last_sequence: u64,
        tools: &mut Tools<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let Some(receiver) = self.receivers.get_mut(&end) else {
            return Ok(());
        };
        let block = self.inbound.block();
        let released = receiver.end.prefix.prefix().released;
        let compact = &mut receiver.compact;
        compact.note(self.inbound.refills(), receiver.arrived);
        let (block, offset) = if compact.is_wanted(released, bytes) {
            self.shared.counters.bytes_copied.add(bytes as u64);
            compact.copy(block, at, bytes, tools.compact_blocks)?
        } else {
            (block.clone(), at)
        };
        let frame = Frame {
            block,
            offset,
            bytes,
            last_sequence,
        };
        receiver.arrived = last_sequence;
        receiver.end.arrived.store(last_sequence, Ordering::Relaxed);
        if let Some(writer) = &mut receiver.writer
            && writer.push(frame).is_err()
        {
            // The session admits no more messages than the ring has slots.
            unreachable!("a channel's window admitted more frames than it has messages");
        }
        if receiver.end.waiters.is_waiting() {
            receiver.end.waiters.take(&mut context.wakers);
        }
        Ok(())
    }

    // ---- Large messages --------------------------------------------------------------

    /// Memory is wanted: at once if some is kept, else off the turn.
    pub(super) fn large_announced(
        &mut self,
        end: u32,
        sequence: u64,
        length: u64,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.receivers.get_mut(&end) else {
            return;
        };
        receiver.large.push_back(LargeIn {
            sequence,
            length,
            memory: None,
        });
        match self.shared.large_pool().take_kept(length as usize) {
            Some(memory) => self.large_memory(end, sequence, Ok(memory), context),
            None => context.wanted.push(LargeWanted {
                session: self.shared.clone(),
                end,
                sequence,
                length,
            }),
        }
    }

    /// Memory for a large message has come, or cannot be had.
    pub(crate) fn large_memory(
        &mut self,
        end: u32,
        sequence: u64,
        memory: Result<LargeLease, MemoryError>,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.receivers.get_mut(&end) else {
            return;
        };
        let Some(large) = receiver
            .large
            .iter_mut()
            .find(|large| large.sequence == sequence)
        else {
            return;
        };
        match memory {
            Ok(memory) => {
                large.memory = Some(memory);
                self.session.grant(end, sequence);
            }
            Err(error) => {
                let cause = crate::channel::EndCause::Memory(error.to_string());
                receiver
                    .end
                    .state
                    .end(crate::channel::state::End::Cause(cause));
                receiver.end.waiters.take(&mut context.wakers);
                let counters = receiver.end.counters();
                let reason = crate::engine::control::CloseReason::OutOfMemory;
                self.close_receiver(end, &counters, reason);
            }
        }
    }

    /// A chunk's header is through; its bytes go straight into their place, except those
    /// that are in the block already.
    fn begin_chunk(
        &mut self,
        end: u32,
        sequence: u64,
        offset: u64,
        header: &FrameHeader,
        complete: bool,
    ) {
        let body = header.body_bytes();
        let fill = header.padded_length() - header.length as usize;
        let large = self.receivers.get(&end).and_then(|receiver| {
            receiver
                .large
                .iter()
                .find(|large| large.sequence == sequence)
        });
        let Some(LargeIn {
            memory: Some(memory),
            length,
            ..
        }) = large
        else {
            // The handle is gone since.
            self.inbound.skip = body + fill;
            return;
        };
        debug_assert!(offset + body as u64 <= *length);
        // SAFETY: the session checked that the chunk lies inside the granted message.
        let place = unsafe { memory.base().add(offset as usize) };
        let here = self.inbound.unparsed();
        let copied = here.len().min(body);
        // SAFETY: `copied` bytes at both sides, of different memory.
        unsafe { ptr::copy_nonoverlapping(here.as_ptr(), place.as_ptr(), copied) };
        self.inbound.consume(copied);
        let copied_bytes = &self.shared.counters.bytes_copied;
        copied_bytes.add(copied as u64);
        let left = body - copied;
        if left > 0 {
            self.inbound.step_over(left);
        }
        // SAFETY: inside the chunk's place, or at its end.
        let at: NonNull<u8> = unsafe { place.add(copied) };
        self.inbound.chunk = Some(ChunkInProgress {
            end,
            at,
            left,
            fill,
            complete,
        });
    }

    /// The last byte of a chunk is in its place.
    fn chunk_arrived(&mut self, context: &mut Context<'_>) {
        let Some(chunk) = self.inbound.chunk.take() else {
            return;
        };
        self.inbound.skip = chunk.fill;
        let Some(receiver) = self.receivers.get_mut(&chunk.end) else {
            return;
        };
        if !chunk.complete {
            return;
        }
        if let Some(LargeIn {
            sequence,
            length,
            memory: Some(memory),
        }) = receiver.large.pop_front()
        {
            let (length, place) = (length as usize, LargePlace::Granted(memory));
            receiver.end.large().push_back(LargeArrival {
                sequence,
                length,
                place,
            });
            receiver.end.waiters.take(&mut context.wakers);
        }
        self.session.handle_large_complete(chunk.end);
    }

    /// The handle that a chunk is for is gone, and its memory goes: what is still to come
    /// is skipped.
    pub(super) fn abandon_chunk(&mut self, end: u32) {
        if self
            .inbound
            .chunk
            .as_ref()
            .is_some_and(|chunk| chunk.end == end)
            && let Some(chunk) = self.inbound.chunk.take()
        {
            self.inbound.skip = chunk.left + chunk.fill;
        }
    }

    /// Reads what arrived before the link broke, then ends the session.
    pub(super) fn drain_then_fail(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.to_owned());
        self.readable = true;
    }
}

impl ReceiveLink {
    /// A granted message has not begun to arrive, or is in the middle.
    fn expects_chunk(&self) -> bool {
        self.large
            .front()
            .is_some_and(|large| large.memory.is_some())
    }
}

/// Why a frame could not be handed on.
enum Fault {
    Peer(PeerMisbehaved),
    Memory(MemoryError),
}

impl From<PeerMisbehaved> for Fault {
    fn from(misbehaved: PeerMisbehaved) -> Self {
        Fault::Peer(misbehaved)
    }
}

impl From<MemoryError> for Fault {
    fn from(error: MemoryError) -> Self {
        Fault::Memory(error)
    }
}

const _: () = assert!(MAX_FRAME_BYTES > BEFORE_CHUNK);
