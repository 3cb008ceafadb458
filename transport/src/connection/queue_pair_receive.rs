//! The receiving half of a queue pair: what completions bring is a whole frame each, read
//! where the device put it.

use std::{
    io::{self, Read},
    mem,
    ops::Range,
    ptr, slice,
};

use ibex_protocol::{
    format::frame::FrameHeader,
    session::{Arrival, PeerMisbehaved},
    transfer::{eager_write::LandingId, rendezvous::Chunk},
};
use ibex_ring::memory::BufferLease;
use ibex_verbs::{CompletionKind, Operation, WorkCompletion};

use super::{
    Link, Phase, Wires,
    queue_pair::{Pair, PairState},
    receivers::{Arrived, Fault},
};
use crate::{
    clock,
    connection::{Context, Tools},
    rdma::{ArrivedBuffer, SharedReceives},
    session::EndCause,
};

impl Link {
    /// Takes in a completion of our queue pair. `shared` are the buffers of the receive
    /// queue that it shares, if it does. Returns whether anything may follow: output, or a
    /// credit report.
    #[inline(always)]
    pub(crate) fn handle_completion(
        &mut self,
        completion: &WorkCompletion,
        mut shared: Option<&mut SharedReceives>,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        let Wires::Pair(pair) = &mut self.wires else {
            // Late, and its buffer may be used again.
            let _ = shared.and_then(|shared| shared.complete(completion.id()));
            self.has_strayed();
            return false;
        };
        // A frame nearly always.
        if matches!(pair.state, PairState::Live(_))
            && let Some(bytes) = completion.received()
            && let Some(buffer) = pair.arrived(completion, shared.as_deref_mut())
        {
            self.shared.counters.completions.add(1);
            let time = pair.time_of(completion);
            let follows = self.frame_arrived(buffer, bytes as usize, time, tools, context);
            self.refill_own();
            follows
        } else {
            self.handle_any_completion(completion, shared, tools, context);
            true
        }
    }

    #[inline(never)]
    fn handle_any_completion(
        &mut self,
        completion: &WorkCompletion,
        shared: Option<&mut SharedReceives>,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        if let PairState::Leaving(teardown) = &mut pair.state
            && teardown.handle_completion(completion)
        {
            return;
        }
        let outcome = completion.outcome();
        let is_known = match completion.id().operation() {
            Operation::Receive => match pair.arrived(completion, shared) {
                Some(buffer) => {
                    if let Ok(done) = outcome {
                        let time = pair.time_of(completion);
                        let bytes = done.bytes as usize;
                        match done.kind {
                            CompletionKind::Receive => {
                                self.frame_arrived(buffer, bytes, time, tools, context);
                            }
                            // It took a buffer and put nothing in.
                            _ => self.block_arrived(done.immediate, buffer, time, tools, context),
                        }
                    }
                    true
                }
                None => false,
            },
            _ => pair.sent(completion, outcome.is_ok()),
        };
        self.shared.counters.completions.add(1);
        match outcome {
            Err(failure) => self.request_failed(&failure),
            Ok(_) if is_known => self.sends_are_done(context),
            Ok(_) => {
                self.has_strayed();
                tracing::debug!(id = %completion.id(), "a completion of no request of ours");
            }
        }
        self.refill_own();
    }

    /// A completion came of nothing that we have.
    fn has_strayed(&self) {
        if let Some(site) = self.shared.carrier.last_site() {
            site.counters.strayed();
        }
    }

    /// A turn: the connection's news, and how far a queue pair is on its way out.
    pub(super) fn receive_pair(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        let Wires::Pair(pair) = &self.wires else {
            return false;
        };
        if matches!(pair.state, PairState::Leaving(_))
            && self.look_at_teardown(clock::now(), tools, context)
        {
            return true;
        }
        if !mem::take(&mut self.readable) {
            return false;
        }
        let mut is_refused = false;
        let why = match (&self.tcp).read(&mut [0; 1]) {
            Ok(0) => "it closed the connection without saying goodbye".to_owned(),
            Ok(_) => {
                is_refused = true;
                "it broke the protocol: bytes came over a connection that carries none".to_owned()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => format!("reading from its connection failed: {error}"),
        };
        self.part_from_epoll(&tools.epoll);
        if self.phase == Phase::Gone {
            return true;
        }
        if let Wires::Pair(pair) = &mut self.wires {
            pair.is_left = true;
        }
        match is_refused {
            true => self.refuse(why),
            false => self.drain_then_end(EndCause::lost(why)),
        }
        true
    }

    /// Hands on one frame, unless the session is over. Returns whether anything may follow.
    #[inline(always)]
    fn frame_arrived(
        &mut self,
        buffer: ArrivedBuffer,
        bytes: usize,
        time: u64,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        if self.phase == Phase::Gone {
            return false;
        }
        let counters = &self.shared.counters;
        counters.frames_received.add(1);
        counters.bytes_received.add(bytes as u64);
        let base = buffer.lease.base();
        // A device that says more than it was given room for is not believed.
        let bytes = bytes.min(buffer.lease.bytes());
        // SAFETY: `bytes` of the buffer were written by the device, which is done with it,
        // and nobody writes while we have the lease. Memory from the kernel is
        // initialised, so what a device did not write can be read too.
        let frame = unsafe { slice::from_raw_parts(base.as_ptr(), bytes) };
        let (taken, follows) = match self.session.handle_lone_record(frame, 0) {
            Some(lone) => {
                let (range, last) = (lone.offset..lone.offset + lone.bytes, lone.sequence);
                let arrived = arrived(buffer, range, last, time);
                let placed = self.place_records(lone.end, arrived, tools, context);
                (placed, false)
            }
            None => (self.take_frame(frame, buffer, time, tools, context), true),
        };
        if let Err(fault) = taken {
            self.frame_is_refused(&fault, context);
            return true;
        }
        follows
    }

    /// A block was written: with its message, and the frame that announces it. That is
    /// copied to where it would have come alone, since the peer may write there again.
    #[inline(never)]
    fn block_arrived(
        &mut self,
        immediate: Option<u32>,
        buffer: ArrivedBuffer,
        time: u64,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        if self.phase == Phase::Gone {
            return;
        }
        let taken = self.take_block(immediate, buffer, time, tools, context);
        if let Err(fault) = taken {
            self.frame_is_refused(&fault, context);
        }
    }

    fn take_block(
        &mut self,
        immediate: Option<u32>,
        buffer: ArrivedBuffer,
        time: u64,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let no_block = PeerMisbehaved::UngrantedWrite;
        let id = LandingId::from_word(immediate.ok_or(no_block)?);
        self.session.landing_of(id)?;
        let Wires::Pair(pair) = &self.wires else {
            return Ok(());
        };
        let block = pair.landings.block(id.index).ok_or(no_block)?;
        let head = block.head();
        let base = buffer.lease.base();
        let room = buffer.lease.bytes().min(head.len());
        // SAFETY: the device is done with the buffer, and nobody reads or writes it while we
        // have the lease; `room` bytes are in both.
        let copied = unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), base.as_ptr(), room);
            slice::from_raw_parts(base.as_ptr(), room)
        };
        let header = FrameHeader::parse(copied).map_err(PeerMisbehaved::from)?;
        let bytes = header.map_or(0, |header| header.padded_length());
        let frame = copied.get(..bytes).ok_or(PeerMisbehaved::CutFrame {
            arrived: room as u64,
            length: bytes as u32,
        })?;
        let counters = &self.shared.counters;
        counters.frames_received.add(1);
        counters.bytes_received.add(bytes as u64);
        self.take_frame(frame, buffer, time, tools, context)?;
        match self.session.landing_of(id) {
            // For an end that is gone here it was for nobody.
            Ok(end) if self.receivers.contains(end) => {
                Err(PeerMisbehaved::LandedElsewhere { id }.into())
            }
            _ => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn frame_is_refused(&mut self, fault: &Fault, context: &mut Context<'_>) {
        self.fail(&fault.to_string(), context);
    }

    /// A frame that is more than one message, or something else. `frame` are the bytes of
    /// `buffer`.
    #[inline(never)]
    fn take_frame(
        &mut self,
        frame: &[u8],
        buffer: ArrivedBuffer,
        time: u64,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let cut = |length| PeerMisbehaved::CutFrame {
            arrived: frame.len() as u64,
            length,
        };
        let header = FrameHeader::parse(frame)
            .map_err(PeerMisbehaved::from)?
            .ok_or(cut(0))?;
        if !(header.length as usize..=header.padded_length()).contains(&frame.len()) {
            return Err(cut(header.length).into());
        }
        let frame = &frame[..header.length as usize];
        match self.session.handle_frame(&header, frame, 0)? {
            Arrival::Nothing | Arrival::Unwanted => {}
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                let (range, last) = (offset..offset + bytes, first_sequence + records - 1);
                self.place_records(end, arrived(buffer, range, last, time), tools, context)?;
                while let Some(landed) = self.session.poll_landed() {
                    self.landed(landed, time, context);
                }
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                let until = chunk.offset + chunk.bytes as u64;
                self.large_moves(end, chunk.sequence, until, context);
                self.place_chunk(end, chunk, &frame[header.body_offset()..]);
                if complete {
                    self.large_arrived(end, time, context);
                }
            }
            Arrival::Written { end, .. } => {
                self.shared.counters.rendezvous_received.add(1);
                self.large_arrived(end, time, context);
            }
        }
        self.handle_events(context);
        Ok(())
    }

    #[inline(never)]
    fn place_chunk(&mut self, end: u32, chunk: Chunk, body: &[u8]) {
        let receiver = self.receivers.get(end);
        let place = receiver.and_then(|one| one.place_of(chunk.sequence, chunk.offset, body.len()));
        // Without a place the handle is gone since.
        if let Some(place) = place {
            // SAFETY: the chunk's place in memory that was granted for it and that nobody
            // reads before it is complete; the frame is elsewhere.
            unsafe {
                ptr::copy_nonoverlapping(body.as_ptr(), place.as_ptr(), body.len());
            }
            self.shared.counters.bytes_copied.add(body.len() as u64);
        }
    }
}

/// Records of a frame, at `range` of the buffer that it lies in.
#[inline(always)]
fn arrived(
    buffer: ArrivedBuffer,
    range: Range<usize>,
    last_sequence: u64,
    time: u64,
) -> Arrived<BufferLease> {
    Arrived {
        // SAFETY: the session found them inside the frame.
        base: unsafe { buffer.lease.base().add(range.start) },
        bytes: range.len(),
        last_sequence,
        time,
        memory: buffer.lease,
        refills: buffer.refills,
        of_block: 0,
        is_scarce: buffer.is_scarce,
    }
}

impl Pair {
    /// When a receive was done, in nanoseconds since 1970; 0 where nobody says so.
    #[inline(always)]
    fn time_of(&self, completion: &WorkCompletion) -> u64 {
        match self.has_times {
            true => completion.time(),
            false => 0,
        }
    }

    /// The buffer of a receive that completed; `None` if it is none of ours.
    #[inline(always)]
    fn arrived(
        &mut self,
        completion: &WorkCompletion,
        shared: Option<&mut SharedReceives>,
    ) -> Option<ArrivedBuffer> {
        let Some(own) = &mut self.own else {
            return shared?.complete(completion.id());
        };
        let buffer = own.complete(completion.id())?;
        if let PairState::Live(queue_pair) = &mut self.state
            && let Some(queue) = queue_pair.receive_queue()
        {
            queue.retire(1);
        }
        Some(buffer)
    }

    /// Sends up to one that completed are done; false if it is none of ours.
    fn sent(&mut self, completion: &WorkCompletion, is_done: bool) -> bool {
        let Some(done) = self.sending.slots.complete(completion.id()) else {
            return false;
        };
        if is_done && let PairState::Live(queue_pair) = &mut self.state {
            queue_pair.retire_sends(done);
        }
        true
    }
}

impl Link {
    /// Posts receives again into the pair's own queue, where it has one.
    #[inline]
    fn refill_own(&mut self) {
        if let Wires::Pair(pair) = &self.wires
            && let Some(own) = &pair.own
            && own.wants_refill()
        {
            self.refill_own_queue();
        }
    }

    #[inline(never)]
    fn refill_own_queue(&mut self) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        if let PairState::Live(queue_pair) = &mut pair.state
            && let Some(own) = &mut pair.own
            && let Some(queue) = queue_pair.receive_queue()
            && let Err(error) = own.refill(queue)
        {
            let why = error.to_string();
            self.drain_then_end(EndCause::DeviceLost { why });
        }
    }
}
