//! A receiving end in the engine: frames of records and large messages on their way to
//! its handle.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{collections::VecDeque, mem, ptr::NonNull, sync::Arc};

use ibex_protocol::{format::control::CloseReason, timer::Timer};
use ibex_ring::{
    ArrivalWriter,
    memory::{BlockLease, BlockPool, LargeLease, MemoryError},
};

use super::{compaction::Compact, core::Core, stalls::ReceiverStall};
use crate::{
    clock,
    connection::{Context, MemoryWanted, Purpose},
    endpoint::{
        receive_end::{Frame, LargeArrival, LargePlace, ReceiveEnd},
        state::End,
    },
    session::EndCause,
    wire::{Arrived, Fault, FrameMemory, Tools},
};

/// One receiving end in the engine.
pub(super) struct ReceiveLink {
    pub(super) end: Arc<ReceiveEnd>,
    pub(super) writer: Option<ArrivalWriter<Frame>>,
    /// Messages that arrived.
    arrived: u64,
    /// Large messages that were announced and are not complete.
    pub(super) large: VecDeque<LargeIn>,
    /// Bytes of all those for which memory was wanted.
    large_wanted: u64,
    /// Blocks are on their way to its sender, or there.
    pub(super) has_landings: bool,
    compact: Compact,
    /// The peer's asked word as it was when we last answered (shm).
    pub(super) answered: u32,
    /// The last arming on behalf of a program that sleeps on the epoll set (shm).
    pub(super) armed_for_caller: u32,
    /// The ring was given to the handle (shm).
    pub(super) has_ring: bool,
    /// The sender waits for room.
    pub(super) stall: Option<ReceiverStall>,
    /// Messages that had arrived when it was looked at last; what they took may be wanted
    /// back.
    silence: Option<u64>,
    /// The handle lacks memory and is woken when it may try again (shm).
    retries: Option<Instant>,
}

/// A large message on its way in.
pub(super) struct LargeIn {
    pub(super) sequence: u64,
    pub(super) length: u64,
    /// Its memory is wanted, or here.
    is_wanted: bool,
    pub(super) memory: Option<LargeLease>,
    /// Position in it up to which the peer may go.
    granted: u64,
    /// Position up to which it has come.
    arrived: u64,
    lacks: Lack,
    /// The peer writes it: until it says that it is done, or can write no more, the memory
    /// is nobody else's.
    is_the_peers: bool,
}

/// Lack of a large message on its way in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lack {
    Nothing,
    /// More memory is on its way.
    IsComing,
    /// There is no room for more; it is looked for again.
    Room,
    /// The kernel gave none; it is asked again.
    Memory,
}

impl ReceiveLink {
    pub(super) fn new(end: Arc<ReceiveEnd>) -> Self {
        Self {
            end,
            writer: None,
            arrived: 0,
            large: VecDeque::new(),
            large_wanted: 0,
            has_landings: false,
            compact: Compact::default(),
            answered: 0,
            armed_for_caller: 0,
            has_ring: false,
            stall: None,
            silence: None,
            retries: None,
        }
    }

    /// Gives back what messages took, if none has come since the last look. Returns whether
    /// one has.
    pub(super) fn look_for_silence(&mut self) -> bool {
        let arrived = self.arrived;
        if self.silence.replace(arrived) != Some(arrived) {
            return true;
        }
        // Guards may have settled since anybody counted.
        self.end.advance(true);
        if let Some(writer) = &mut self.writer
            && writer.rest()
        {
            // SAFETY: the handle finds frames in the arrival ring alone, which is empty and
            // gets none while we have its writer.
            unsafe { self.end.rest() };
        }
        self.compact.rest();
        // Where none could be had, they may be had when it is used again.
        self.has_landings = false;
        false
    }

    /// Whether a large message waits for others to be released.
    #[inline]
    pub(super) fn waits_for_release(&self) -> bool {
        self.large.back().is_some_and(|large| !large.is_wanted)
    }

    /// The next large message for which memory may be had, now wanted. If it may not, the
    /// next guard that settles rings for it.
    fn next_wanted(&mut self) -> Option<(u64, u64)> {
        let limit = self.end.state.agreed()?.large_bytes();
        let next = self.large.iter_mut().find(|large| !large.is_wanted)?;
        let wanted = self.large_wanted + next.length;
        // One may be out, however long it is.
        let limit = limit.max(next.length);
        let fits = |end: &ReceiveEnd| wanted - end.large_released.get() <= limit;
        if !fits(&self.end) {
            self.end.answer_ask();
            if !fits(&self.end) {
                return None;
            }
        }
        next.is_wanted = true;
        self.large_wanted = wanted;
        Some((next.sequence, next.length))
    }

    /// Gives the memory that the peer was granted for messages that are not complete.
    pub(super) fn withdraw_large(&mut self) -> impl Iterator<Item = LargeLease> {
        let large = self.large.iter_mut().filter(|large| large.is_the_peers);
        large.filter_map(|large| large.memory.take())
    }

    /// Messages whose memory was [withdrawn](Self::withdraw_large), now wanted anew.
    pub(super) fn want_again(&mut self) -> impl Iterator<Item = (u64, u64)> {
        self.has_landings = false;
        self.large.iter_mut().filter_map(|large| {
            let was_the_peers = mem::take(&mut large.is_the_peers);
            was_the_peers.then(|| {
                (large.granted, large.arrived) = (0, 0);
                (large.sequence, large.length)
            })
        })
    }

    /// Forgets the large messages that are not complete; gives the memory that the peer may
    /// be writing to.
    pub(super) fn forget_large(&mut self) -> impl Iterator<Item = LargeLease> {
        let large = self.large.drain(..).filter(|large| large.is_the_peers);
        large.filter_map(|large| large.memory)
    }
}

impl Core {
    /// Puts a frame's records in front of the receiver.
    #[inline(always)]
    pub(super) fn place_records<M: Into<FrameMemory>>(
        &mut self,
        end: u32,
        arrived: Arrived<M>,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let Some(receiver) = self.receivers.get_mut(end) else {
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
            self.common.shared.counters.bytes_copied.add(bytes as u64);
            // SAFETY: the frame's bytes are in `memory`, and nobody writes there.
            let copied = unsafe { receiver.copy(base, bytes, &mut tools.compact_blocks) };
            let (base, block) = copied?;
            receiver.push(base, bytes, last_sequence, time, block);
        } else {
            receiver.push(base, bytes, last_sequence, time, memory);
        }
        if receiver.end.waiters.is_waiting() {
            receiver.end.waiters.take(&mut context.wakers);
        }
        Ok(())
    }

    // ---- Large messages --------------------------------------------------------------

    /// A large message waits for its memory.
    pub(super) fn large_announced(
        &mut self,
        end: u32,
        sequence: u64,
        length: u64,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.receivers.get_mut(end) else {
            return;
        };
        receiver.large.push_back(LargeIn {
            sequence,
            length,
            is_wanted: false,
            memory: None,
            granted: 0,
            arrived: 0,
            lacks: Lack::Nothing,
            is_the_peers: false,
        });
        self.want_large(end, context);
        self.want_landings(end, length, context);
    }

    /// Gets memory for what was announced, as far as the channel may have it, and not more of
    /// the session have memory and do not come: at once if some is kept, else off the turn.
    pub(super) fn want_large(&mut self, end: u32, context: &mut Context<'_>) {
        if !context.node().memory.has_room() {
            let again = clock::now() + LOOK_FOR_ROOM;
            self.common.timers.set_sooner(Timer::Memory, again);
            self.lacks_room(end);
            return;
        }
        if self
            .receivers
            .get(end)
            .is_some_and(|one| one.large.iter().all(|large| large.lacks != Lack::Room))
        {
            self.has_room(end);
        }
        while self.unbegun() < MAX_UNBEGUN
            && let Some(receiver) = self.receivers.get_mut(end)
            && let Some((sequence, length)) = receiver.next_wanted()
        {
            match self.common.shared.kept_for_arrival(length as usize) {
                Some(memory) => self.large_memory(end, sequence, Ok(memory), context),
                None => context.wanted.push(MemoryWanted {
                    session: self.common.shared.clone(),
                    end,
                    purpose: Purpose::Large { sequence, length },
                }),
            }
        }
        if self
            .receivers
            .get(end)
            .is_some_and(ReceiveLink::waits_for_release)
        {
            self.room_is_wanted(end);
            self.common.session.grant_waits(end);
        }
    }

    /// A message of `end` waits, as there is no room for it within the node's limit.
    fn lacks_room(&mut self, end: u32) {
        if let Some(receiver) = self.receivers.get(end)
            && !receiver.large.is_empty()
        {
            receiver.end.lacks_room.store(true, Ordering::Relaxed);
            self.room_is_wanted(end);
        }
    }

    /// It does so no more.
    fn has_room(&mut self, end: u32) {
        if let Some(receiver) = self.receivers.get(end) {
            receiver.end.lacks_room.store(false, Ordering::Relaxed);
        }
    }

    /// Large messages of the session that have memory, or are about to, and of which nothing has
    /// come.
    fn unbegun(&self) -> usize {
        let large = self.receivers.values().flat_map(|one| &one.large);
        large
            .filter(|large| large.is_wanted && large.arrived == 0)
            .count()
    }

    /// One of them comes, or none will: others may have theirs.
    fn one_has_begun(&mut self, context: &mut Context<'_>) {
        let waiting: Vec<_> = self
            .receivers
            .iter()
            .filter(|(_, receiver)| receiver.waits_for_release())
            .map(|(end, _)| end)
            .collect();
        for end in waiting {
            self.want_large(end, context);
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
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        let mut memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                large.lacks = Lack::Memory;
                self.lacks_memory(&error);
                return;
            }
        };
        let length = large.length;
        let granted = self.common.shared.granted_memory(&memory, length as usize);
        // What has its pages is charged already.
        let first = match memory.claim_mut() {
            Some(_) => length,
            None => length.min(FIRST_BYTES),
        };
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        large.is_the_peers = granted.is_some();
        large.memory = Some(memory);
        large.granted = first;
        match granted {
            Some(granted) => self.common.session.grant_memory(end, sequence, granted),
            None => self.common.session.grant(end, sequence, first),
        }
        let _ = context;
    }

    fn large_in(&mut self, end: u32, sequence: u64) -> Option<&mut LargeIn> {
        let mut large = self.receivers.get_mut(end)?.large.iter_mut();
        large.find(|large| large.sequence == sequence)
    }

    /// A chunk of a large message is here, or on its way: up to `until` it has come. From the
    /// first on it is charged, and gets more memory ahead of what comes.
    pub(super) fn large_moves(
        &mut self,
        end: u32,
        sequence: u64,
        until: u64,
        context: &mut Context<'_>,
    ) {
        let budget = context.node().memory;
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        let has_begun = large.arrived == 0;
        large.arrived = until;
        let (length, granted) = (large.length, large.granted);
        if let Some(memory) = &mut large.memory {
            if memory.claim_mut().is_none() {
                memory.charge_to(budget.begin(length.saturating_sub(FIRST_BYTES)));
            }
            if let Some(claim) = memory.claim_mut() {
                claim.begun_with(until.next_multiple_of(PAGES).min(FIRST_BYTES));
            }
        }
        if granted < length && granted - until < AHEAD_BYTES {
            self.want_more(end, sequence, context);
        }
        if has_begun {
            self.one_has_begun(context);
        }
    }

    /// Has more memory made for a large message that is coming, if there is room for it, or
    /// tries again later.
    fn want_more(&mut self, end: u32, sequence: u64, context: &mut Context<'_>) {
        let session = self.common.shared.clone();
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        let from = large.granted;
        let to = large.length.min(from + MORE_BYTES);
        let Some(memory) = &mut large.memory else {
            return;
        };
        if large.lacks == Lack::IsComing || to == from {
            return;
        }
        // What the kernel did not give is charged already.
        let is_charged = large.lacks == Lack::Memory
            || memory
                .claim_mut()
                .is_some_and(|claim| context.node().charge(claim, to - from));
        if !is_charged {
            large.lacks = Lack::Room;
            let again = clock::now() + LOOK_FOR_ROOM;
            self.common.timers.set_sooner(Timer::Memory, again);
            return self.lacks_room(end);
        }
        large.lacks = Lack::IsComing;
        let memory = memory.memory().clone();
        self.has_room(end);
        context.wanted.push(MemoryWanted {
            session,
            end,
            purpose: Purpose::More {
                sequence,
                memory,
                from,
                to,
            },
        });
    }

    /// A large message has memory up to `to`, or the kernel gave none.
    pub(crate) fn large_memory_grew(
        &mut self,
        end: u32,
        sequence: u64,
        to: u64,
        populated: Result<(), MemoryError>,
    ) {
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        if large.lacks != Lack::IsComing || large.granted >= to {
            return;
        }
        if let Err(error) = populated {
            large.lacks = Lack::Memory;
            return self.lacks_memory(&error);
        }
        large.lacks = Lack::Nothing;
        large.granted = to;
        if let Some(memory) = &mut large.memory {
            memory.has_pages(to as usize);
        }
        self.common.session.grant(end, sequence, to);
    }

    /// The kernel gives no memory for what is announced, which waits for it.
    fn lacks_memory(&mut self, error: &MemoryError) {
        let peer = self.common.shared.peer().address;
        tracing::debug!(%peer, %error, "a large message waits for memory");
        let again = clock::now() + ASK_KERNEL_AGAIN;
        self.common.timers.set_sooner(Timer::Memory, again);
    }

    /// Large messages that lack memory try again.
    fn large_tries_again(&mut self, context: &mut Context<'_>) {
        let mut lacking = Vec::new();
        for (end, receiver) in self.receivers.iter() {
            let large = receiver.large.iter();
            let lacks = large.filter(|one| matches!(one.lacks, Lack::Room | Lack::Memory));
            lacking.extend(lacks.map(|one| (end, one.sequence, one.length, one.memory.is_some())));
        }
        self.one_has_begun(context);
        for (end, sequence, length, has_some) in lacking {
            if has_some {
                self.want_more(end, sequence, context);
            } else if let Some(large) = self.large_in(end, sequence) {
                large.lacks = Lack::Nothing;
                context.wanted.push(MemoryWanted {
                    session: self.common.shared.clone(),
                    end,
                    purpose: Purpose::Large { sequence, length },
                });
            }
        }
    }

    /// The handle of a receiving end lacks memory for what has come: it is woken at `retry_at`,
    /// however it waits.
    pub(crate) fn receiver_retries(&mut self, end: u32, retry_at: Instant) {
        if let Some(receiver) = self.receivers.get_mut(end) {
            receiver.retries = Some(retry_at);
            if receiver.end.lacks_room.load(Ordering::Relaxed) {
                self.room_is_wanted(end);
            }
            self.common.timers.set_sooner(Timer::Memory, retry_at);
        }
    }

    /// Receivers that lack memory try again.
    pub(super) fn memory_may_be_there(&mut self, now: Instant, context: &mut Context<'_>) {
        for receiver in self.receivers.values_mut() {
            match receiver.retries {
                Some(retry_at) if retry_at <= now => {
                    receiver.retries = None;
                    receiver.end.waiters.take(&mut context.wakers);
                }
                // It would find that it is too soon, and sleep on.
                Some(retry_at) => self.common.timers.set_sooner(Timer::Memory, retry_at),
                None => {}
            }
        }
        self.large_tries_again(context);
    }

    /// Nothing can arrive at a receiving end, as the kernel refuses memory: both ends hear of
    /// it, and may be opened again.
    pub(super) fn receiver_lacks_memory(
        &mut self,
        end: u32,
        error: &MemoryError,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.receivers.get_mut(end) else {
            return;
        };
        let cause = EndCause::Memory(error.to_string());
        receiver.end.state.end(End::Cause(cause));
        receiver.end.waiters.take(&mut context.wakers);
        let counters = receiver.end.counters();
        self.close_receiver(end, &counters, CloseReason::NoRoom);
    }

    /// The last byte of a large message is in its place: nobody writes there any more.
    pub(super) fn large_arrived(&mut self, end: u32, time: u64, context: &mut Context<'_>) {
        let Some(receiver) = self.receivers.get_mut(end) else {
            return;
        };
        if let Some(LargeIn {
            sequence,
            length,
            memory: Some(mut memory),
            ..
        }) = receiver.large.pop_front()
        {
            memory.has_pages(length as usize);
            if let Some(claim) = memory.claim_mut() {
                claim.finish(length);
            }
            let arrival = LargeArrival {
                sequence,
                length: length as usize,
                time,
                place: LargePlace::Granted(memory),
            };
            receiver.large_came(arrival, context);
        }
        self.common.session.handle_large_complete(end);
        self.one_has_begun(context);
    }
}

/// Bytes that a large message may bring before it has more memory than it is charged for.
const FIRST_BYTES: u64 = 1 << 20;
/// In such steps is that charged.
const PAGES: u64 = 64 << 10;
/// By how much its memory grows.
const MORE_BYTES: u64 = 4 << 20;
/// It grows when less than this is to come in what it has.
const AHEAD_BYTES: u64 = 2 << 20;
/// Large messages of a session that may have memory for their beginning, and have not begun.
const MAX_UNBEGUN: usize = 4;
/// Until it is looked again for room within the limit of memory.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(5);
/// Until the kernel is asked again for memory that it did not give.
const ASK_KERNEL_AGAIN: Duration = Duration::from_millis(20);

impl ReceiveLink {
    /// Hands a large message to the receiver, and wakes who waits for it.
    pub(super) fn large_came(&self, arrival: LargeArrival, context: &mut Context<'_>) {
        self.end.large_came(arrival);
        self.end.waiters.take(&mut context.wakers);
    }

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
    /// `bytes` can be read from `from` on, and nobody writes there meanwhile.
    #[inline(never)]
    unsafe fn copy(
        &mut self,
        from: NonNull<u8>,
        bytes: usize,
        pool: &mut BlockPool,
    ) -> Result<(NonNull<u8>, BlockLease), MemoryError> {
        // SAFETY: as our caller says.
        let (block, offset) = unsafe { self.compact.copy(from, bytes, pool) }?;
        // SAFETY: the copy is inside its block.
        let base = unsafe { block.base().add(offset) };
        Ok((base, BlockLease::new(block)))
    }

    /// Where `bytes` at `offset` of a granted message go; `None` if it is gone.
    pub(super) fn place_of(&self, sequence: u64, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let large = self.large.iter().find(|one| one.sequence == sequence)?;
        let memory = large.memory.as_ref()?;
        debug_assert!(offset + bytes as u64 <= large.length);
        // SAFETY: the session checked that the bytes lie inside the granted message.
        Some(unsafe { memory.base().add(offset as usize) })
    }

    /// A granted message has not begun to arrive, or is in the middle.
    pub(super) fn expects_chunk(&self) -> bool {
        self.large
            .front()
            .is_some_and(|large| large.memory.is_some())
    }
}
