//! The receiving half of a queue pair. Each receive completion brings a complete frame, which is
//! read where the device put it.

use std::{ops::Range, ptr, slice};

use ibex_protocol::{
    format::frame::FrameHeader, session::PeerMisbehaved, transfer::eager_write::EagerBlockId,
};
use ibex_ring::memory::BufferLease;
use ibex_verbs::{CompletionKind, Operation, WorkCompletion};

use super::{PairState, QueuePairWire};
use crate::{
    rdma::{ArrivedBuffer, SharedReceives},
    session::EndCause,
    wire::{Arrived, EventOutcome, FrameRefusal, Frames, Tools, arrival::take_whole},
};

impl QueuePairWire {
    /// Handles a completion of the queue pair. `shared` are the buffers of the shared receive
    /// queue, if the queue pair uses one.
    #[inline(always)]
    pub(super) fn complete<F: Frames>(
        &mut self,
        completion: &WorkCompletion,
        mut shared: Option<&mut SharedReceives>,
        frames: &mut F,
        tools: &mut Tools,
    ) -> EventOutcome {
        // The completion is nearly always a received frame.
        if matches!(self.state, PairState::Live(_))
            && let Some(bytes) = completion.received()
            && let Some(buffer) = self.arrived(completion, shared.as_deref_mut())
        {
            frames.counters().completions.add(1);
            let time = self.time_of(completion);
            let heard = frame_arrived(buffer, bytes as usize, time, frames, tools);
            match self.refill_own() {
                Ok(()) => heard,
                Err(cause) => EventOutcome::Broke(cause),
            }
        } else {
            self.complete_any(completion, shared, frames, tools)
        }
    }

    #[inline(never)]
    fn complete_any<F: Frames>(
        &mut self,
        completion: &WorkCompletion,
        shared: Option<&mut SharedReceives>,
        frames: &mut F,
        tools: &mut Tools,
    ) -> EventOutcome {
        if let PairState::Leaving(teardown) = &mut self.state
            && teardown.handle_completion(completion)
        {
            return EventOutcome::Something;
        }
        let outcome = completion.outcome();
        let mut heard = EventOutcome::Something;
        let is_receive = completion.id().operation() == Operation::Receive;
        let is_known = match is_receive {
            true => match self.arrived(completion, shared) {
                Some(buffer) => {
                    if let Ok(done) = outcome {
                        let time = self.time_of(completion);
                        let bytes = done.bytes as usize;
                        heard = match done.kind {
                            CompletionKind::Receive => {
                                frame_arrived(buffer, bytes, time, frames, tools)
                            }
                            // The write consumed a receive buffer and put nothing in it.
                            _ => block_arrived(done.immediate, buffer, time, frames, tools),
                        };
                    }
                    true
                }
                None => false,
            },
            false => {
                let _ = self.pulling.windows.note(completion);
                self.sent(completion, outcome.is_ok())
            }
        };
        frames.counters().completions.add(1);
        match outcome {
            Err(failure) => {
                if let Some(cause) = self.cause_of(&failure) {
                    heard = EventOutcome::Broke(Box::new(cause));
                }
            }
            Ok(_) if is_known => {
                if !is_receive && !self.sending.has_failed {
                    let time = self.time_of(completion);
                    self.sends_are_done(time, frames);
                }
            }
            Ok(_) => {
                tracing::debug!(id = %completion.id(), "a completion of no request of ours");
                heard = EventOutcome::Stray;
            }
        }
        match self.refill_own() {
            Ok(()) => heard,
            Err(cause) => EventOutcome::Broke(cause),
        }
    }

    /// Notes that requests up to a signaled one are done, at `time`. Those that have failed are not.
    fn sends_are_done<F: Frames>(&mut self, time: u64, frames: &mut F) {
        if let Some(writes) = self.sending.take_done_writes() {
            frames.session().ends.writes_are_done(writes);
        }
        self.reads_are_done(time, frames);
        frames.session().ends.lane_is_free();
        frames.gone(self.freed());
    }

    /// Posts receives again into the queue pair's own queue, if it has one.
    #[inline]
    fn refill_own(&mut self) -> Result<(), Box<EndCause>> {
        match &self.own {
            Some(own) if own.wants_refill() => self.refill_own_queue(),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn refill_own_queue(&mut self) -> Result<(), Box<EndCause>> {
        if let PairState::Live(queue_pair) = &mut self.state
            && let Some(own) = &mut self.own
            && let Some(queue) = queue_pair.receive_queue()
        {
            let refilled = own.refill(queue);
            return refilled.map_err(|error| {
                let why = error.to_string();
                Box::new(EndCause::DeviceLost { why })
            });
        }
        Ok(())
    }
}

/// Hands on one frame, unless the session is over.
#[inline(always)]
fn frame_arrived<F: Frames>(
    buffer: ArrivedBuffer,
    bytes: usize,
    time: u64,
    frames: &mut F,
    tools: &mut Tools,
) -> EventOutcome {
    if frames.is_over() {
        return EventOutcome::Nothing;
    }
    let counters = frames.counters();
    counters.frames_received.add(1);
    counters.bytes_received.add(bytes as u64);
    let base = buffer.lease.base();
    // A length beyond the buffer is cut, whatever the device reports.
    let bytes = bytes.min(buffer.lease.bytes());
    // SAFETY: the device wrote `bytes` of the buffer and is done with it, and no thread writes
    // while this code has the lease. Memory from the kernel is initialised, so bytes that the
    // device did not write can be read too.
    let frame = unsafe { slice::from_raw_parts(base.as_ptr(), bytes) };
    let (taken, heard) = match frames.session().handle_lone_record(frame, 0) {
        Some(lone) => {
            let (range, last) = (lone.offset..lone.offset + lone.bytes, lone.sequence);
            let arrived = arrived(buffer, range, last, time);
            let placed = frames.records(lone.end, arrived, tools);
            (placed, EventOutcome::Nothing)
        }
        None => (
            take_frame(frame, buffer, time, frames, tools),
            EventOutcome::Something,
        ),
    };
    match taken {
        Ok(()) => heard,
        Err(fault) => EventOutcome::Refused(Box::new(fault)),
    }
}

/// Takes in a written block: its message, and the frame that announces it. The frame is copied to
/// the buffer in which it would otherwise have arrived, because the peer may overwrite the block.
#[inline(never)]
fn block_arrived<F: Frames>(
    immediate: Option<u32>,
    buffer: ArrivedBuffer,
    time: u64,
    frames: &mut F,
    tools: &mut Tools,
) -> EventOutcome {
    if frames.is_over() {
        return EventOutcome::Something;
    }
    match take_block(immediate, buffer, time, frames, tools) {
        Ok(()) => EventOutcome::Something,
        Err(fault) => EventOutcome::Refused(Box::new(fault)),
    }
}

fn take_block<F: Frames>(
    immediate: Option<u32>,
    buffer: ArrivedBuffer,
    time: u64,
    frames: &mut F,
    tools: &mut Tools,
) -> Result<(), FrameRefusal> {
    let no_block = PeerMisbehaved::UngrantedWrite;
    let id = EagerBlockId::from_word(immediate.ok_or(no_block)?);
    let owner = frames.session().eager_blocks.granted_to(id);
    owner.ok_or(PeerMisbehaved::WrongEagerBlock { id })?;
    let block = frames.block(id.index).ok_or(no_block)?;
    let head = block.head();
    let base = buffer.lease.base();
    let room = buffer.lease.bytes().min(head.len());
    // SAFETY: the device is done with the buffer, and no thread reads or writes it while this code
    // has the lease. Both sides have `room` bytes.
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
    let counters = frames.counters();
    counters.frames_received.add(1);
    counters.bytes_received.add(bytes as u64);
    take_frame(frame, buffer, time, frames, tools)?;
    match frames.session().eager_blocks.granted_to(id) {
        // A block for an end that is gone here is ignored.
        Some(end) if frames.has_receiver(end) => Err(PeerMisbehaved::LandedElsewhere { id }.into()),
        _ => Ok(()),
    }
}

/// Takes in a frame that is not a lone record. `frame` are the bytes of `buffer`.
#[inline(never)]
fn take_frame<F: Frames>(
    frame: &[u8],
    buffer: ArrivedBuffer,
    time: u64,
    frames: &mut F,
    tools: &mut Tools,
) -> Result<(), FrameRefusal> {
    let records = |range, last| arrived(buffer, range, last, time);
    take_whole(frame, time, records, frames, tools)
}

/// Returns the records of a frame at `range` of the buffer that the frame lies in.
#[inline(always)]
fn arrived(
    buffer: ArrivedBuffer,
    range: Range<usize>,
    last_sequence: u64,
    time: u64,
) -> Arrived<BufferLease> {
    Arrived {
        // SAFETY: the session found the records inside the frame.
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

impl QueuePairWire {
    /// Returns the time at which a receive completed, in nanoseconds since 1970; 0 if it is
    /// unknown.
    #[inline(always)]
    fn time_of(&self, completion: &WorkCompletion) -> u64 {
        match self.has_times {
            true => completion.time(),
            false => 0,
        }
    }

    /// Returns the buffer of a completed receive; `None` if the completion is not of this wire's
    /// queue.
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

    /// Marks the sends up to a completed one as done. Returns false if the completion is not one of
    /// these sends.
    fn sent(&mut self, completion: &WorkCompletion, is_done: bool) -> bool {
        let Some(done) = self.sending.slots.complete(completion.id()) else {
            return false;
        };
        self.sending.has_failed |= !is_done;
        if is_done && let PairState::Live(queue_pair) = &mut self.state {
            queue_pair.retire_sends(done);
        }
        true
    }
}
