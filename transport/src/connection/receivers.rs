//! A receiving end in the engine, which hands frames of records to its handle.

use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use ibex_protocol::id_map::IdMap;
use ibex_ring::{
    ArrivalWriter,
    memory::{BlockLease, BlockPool, MemoryError},
    parking::Wakers,
};

use super::{compaction::Compact, large_in::LargeIn, stalls::ReceiverStall};
use crate::{
    endpoint::{
        receive_end::{Frame, ReceiveEnd},
        stats::ChannelTotals,
    },
    session::SessionCounters,
    wire::{Arrived, FrameMemory, FrameRefusal, Tools},
};

/// The receiving ends of a session.
#[derive(Default)]
pub(crate) struct Receivers {
    pub(super) ends: IdMap<ReceiverState>,
    /// The counts of the ends that are gone.
    pub(super) gone: ChannelTotals,
}

/// A receiving end in the engine.
pub(super) struct ReceiverState {
    pub(super) end: Arc<ReceiveEnd>,
    pub(super) writer: Option<ArrivalWriter<Frame>>,
    /// The messages that arrived so far.
    arrived: u64,
    /// Large messages that were announced and are not complete.
    pub(super) large: VecDeque<LargeIn>,
    /// Bytes of all large messages for which memory was requested.
    pub(super) large_wanted: u64,
    /// Blocks were requested for the sender, or granted to it.
    pub(super) has_eager_blocks: bool,
    compact: Compact,
    /// The sender's wait for room, if it waits.
    pub(super) stall: Option<ReceiverStall>,
    /// Messages that had arrived at the last check. Their memory may be given back.
    silence: Option<u64>,

    // Shared memory only.
    /// The peer's *asked* word at the time of the last answer.
    pub(super) answered: u32,
    /// The last arming on behalf of a program that sleeps on the epoll set.
    pub(super) armed_for_caller: u32,
    /// The ring was given to the handle.
    pub(super) has_ring: bool,
    /// The time at which a handle that lacks memory is woken to try again.
    pub(super) retries: Option<Instant>,
}

impl ReceiverState {
    pub(super) fn new(end: Arc<ReceiveEnd>) -> Self {
        Self {
            end,
            writer: None,
            arrived: 0,
            large: VecDeque::new(),
            large_wanted: 0,
            has_eager_blocks: false,
            compact: Compact::default(),
            answered: 0,
            armed_for_caller: 0,
            has_ring: false,
            stall: None,
            silence: None,
            retries: None,
        }
    }

    /// Gives back the memory that messages took, if none has come since the last check. Returns
    /// whether one has.
    pub(super) fn check_idle(&mut self) -> bool {
        let arrived = self.arrived;
        if self.silence.replace(arrived) != Some(arrived) {
            return true;
        }
        // Guards may have settled since the last sum.
        self.end.advance(true);
        if let Some(writer) = &mut self.writer
            && writer.rest()
        {
            // SAFETY: the handle finds frames in the arrival ring only. The ring is empty and gets
            // no frame while this code has its writer.
            unsafe { self.end.rest() };
        }
        self.compact.rest();
        // Blocks that could not be granted may be available when the channel is used again.
        self.has_eager_blocks = false;
        false
    }
}

impl Receivers {
    /// Puts a frame's records in front of the receiver.
    #[inline(always)]
    pub(super) fn place_records<M: Into<FrameMemory>>(
        &mut self,
        end: u32,
        arrived: Arrived<M>,
        tools: &mut Tools,
        counters: &SessionCounters,
        wakers: &mut Wakers,
    ) -> Result<(), FrameRefusal> {
        let Some(receiver) = self.ends.get_mut(end) else {
            return Ok(());
        };
        let Arrived {
            base,
            bytes,
            last_sequence,
            time,
            memory,
            refills,
            of_block,
            is_scarce,
        } = arrived;
        let released = receiver.end.prefix.released();
        let compact = &mut receiver.compact;
        compact.note(refills, receiver.arrived, of_block);
        if is_scarce || compact.is_wanted(released, bytes) {
            counters.bytes_copied.add(bytes as u64);
            // SAFETY: the frame's bytes are in `memory`, and no thread writes there.
            let copied = unsafe { receiver.copy(base, bytes, &mut tools.compact_blocks) };
            let (base, block) = copied?;
            receiver.push(base, bytes, last_sequence, time, block);
        } else {
            receiver.push(base, bytes, last_sequence, time, memory);
        }
        if receiver.end.waiters.is_waiting() {
            receiver.end.waiters.take(wakers);
        }
        Ok(())
    }
}

impl ReceiverState {
    /// Hands a frame to the receiver.
    #[inline(always)]
    fn push(
        &mut self,
        base: NonNull<u8>,
        bytes: usize,
        last_sequence: u64,
        time: u64,
        memory: impl Into<FrameMemory>,
    ) {
        if let Some(times) = &self.end.times {
            times.arrived(self.arrived + 1, last_sequence);
        }
        self.arrived = last_sequence;
        self.end.arrived.store(last_sequence, Ordering::Relaxed);
        let Some(writer) = &mut self.writer else {
            return;
        };
        let Some(vacancy) = writer.vacancy() else {
            // The session admits no more messages than the ring has slots.
            unreachable!("a channel's window admitted more frames than it has messages")
        };
        vacancy.fill(Frame {
            base,
            bytes,
            last_sequence,
            time,
            memory: memory.into(),
        });
    }

    /// Copies a frame into memory of the channel's own.
    ///
    /// # Safety
    ///
    /// `bytes` can be read from `from` on, and no thread writes there meanwhile.
    #[inline(never)]
    unsafe fn copy(
        &mut self,
        from: NonNull<u8>,
        bytes: usize,
        pool: &mut BlockPool,
    ) -> Result<(NonNull<u8>, BlockLease), MemoryError> {
        // SAFETY: by the caller's contract.
        let (block, offset) = unsafe { self.compact.copy(from, bytes, pool) }?;
        // SAFETY: the copy is inside its block.
        let base = unsafe { block.base().add(offset) };
        Ok((base, BlockLease::new(block)))
    }
}
