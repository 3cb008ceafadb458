//! Arriving large messages: the peer announces them, they get memory, and arrive in it.

use std::{
    ptr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_protocol::{timer::Timer, transfer::eager_write::lands};
use ibex_ring::memory::MemoryError;

use super::{
    core::Common,
    large_in::{Lack, LargeIn},
    receivers::{ReceiverState, Receivers},
};
use crate::{
    clock,
    connection::{Context, MemoryPurpose, MemoryWanted},
    endpoint::receive_end::{LargeArrival, LargePlace, ReceiveEnd},
    wire::{ArrivalMemory, LargeWanted},
};

impl Receivers {
    /// Notes a large message, which waits for its memory.
    pub(super) fn large_announced(
        &mut self,
        end: u32,
        (sequence, length): (u64, u64),
        is_offered: bool,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.ends.get_mut(end) else {
            return;
        };
        let announced = LargeIn {
            sequence,
            length,
            is_wanted: false,
            memory: None,
            is_offered,
            target: None,
            granted: 0,
            arrived: 0,
            lacks: Lack::Nothing,
            is_the_devices: false,
        };
        // A message that waited for its offer may come behind a later one.
        let place = receiver
            .large
            .partition_point(|large| large.sequence < sequence);
        receiver.large.insert(place, announced);
        self.want_large(end, common, context);
        self.want_eager_blocks(end, length, common, context);
    }

    /// Gets memory for announced messages, as far as the channel's limit allows and while not too
    /// many of the session's messages have memory but have not begun. Regions that need no registration
    /// and kept memory are used at once; other memory is requested outside the turn.
    pub(super) fn want_large(&mut self, end: u32, common: &mut Common, context: &mut Context<'_>) {
        let has_room = context.node.memory.has_room();
        if has_room
            && self
                .ends
                .get(end)
                .is_some_and(|one| one.large.iter().all(|large| large.lacks != Lack::Room))
        {
            self.has_room(end);
        }
        while self.unbegun() < MAX_UNBEGUN
            && let Some(receiver) = self.ends.get_mut(end)
            && let Some(wanted) = receiver.next_wanted(has_room)
        {
            let sequence = wanted.sequence;
            match common.shared.kept_for_arrival(wanted) {
                Ok(memory) => self.large_memory(end, sequence, Ok(memory), common, context),
                Err(wanted) => context.wanted.push(MemoryWanted {
                    session: common.shared.clone(),
                    end,
                    purpose: MemoryPurpose::Large(wanted),
                }),
            }
        }
        if self
            .ends
            .get(end)
            .is_some_and(ReceiverState::waits_for_release)
        {
            if !has_room {
                let again = clock::now() + CHECK_FOR_ROOM;
                common.timers.set_sooner(Timer::Memory, again);
                return self.lacks_room(end, common);
            }
            self.room_is_wanted(end, common);
            common.session.grant_waits(end);
        }
    }

    /// Notes that a message of `end` waits because there is no room for it within the node's limit.
    fn lacks_room(&mut self, end: u32, common: &mut Common) {
        if let Some(receiver) = self.ends.get(end)
            && !receiver.large.is_empty()
        {
            receiver.end.lacks_room.store(true, Ordering::Relaxed);
            self.room_is_wanted(end, common);
        }
    }

    /// Notes that messages of `end` no longer wait for room.
    fn has_room(&mut self, end: u32) {
        if let Some(receiver) = self.ends.get(end) {
            receiver.end.lacks_room.store(false, Ordering::Relaxed);
        }
    }

    /// Counts the large messages of the session that have or will get memory and of which no byte
    /// has arrived.
    fn unbegun(&self) -> usize {
        let large = self.ends.values().flat_map(|one| &one.large);
        large
            .filter(|large| large.is_wanted && large.arrived == 0)
            .count()
    }

    /// Requests memory for waiting messages, because one that has memory begins to arrive, or will
    /// never arrive.
    fn one_has_begun(&mut self, common: &mut Common, context: &mut Context<'_>) {
        let waiting: Vec<_> = self
            .ends
            .iter()
            .filter(|(_, receiver)| receiver.waits_for_release())
            .map(|(end, _)| end)
            .collect();
        for end in waiting {
            self.want_large(end, common, context);
        }
    }

    /// Takes over the memory for a large message, or notes that the kernel refused it.
    pub(crate) fn large_memory(
        &mut self,
        end: u32,
        sequence: u64,
        memory: Result<ArrivalMemory, MemoryError>,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let Some(large) = self.large_in(end, sequence) else {
            return context.leave(memory);
        };
        let mut memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                large.lacks = Lack::Memory;
                lacks_memory(&error, common);
                return;
            }
        };
        let length = large.length;
        if large.is_offered
            && let Some(target) = common.shared.message_target(&memory, length as usize)
            && memory.is_whole()
            && common.session.read_large(end, sequence, length)
        {
            large.target = Some(target);
            (large.granted, large.is_the_devices) = (length, true);
            return large.take_memory(memory, context);
        }
        let granted = common.shared.granted_memory(&memory, length as usize);
        let first = match memory.is_whole() {
            true => length,
            false => length.min(FIRST_BYTES),
        };
        large.is_the_devices = granted.is_some();
        large.granted = first;
        large.take_memory(memory, context);
        match granted {
            Some(granted) => common.session.grant_memory(end, sequence, granted),
            None => common.session.grant(end, sequence, first),
        }
    }

    fn large_in(&mut self, end: u32, sequence: u64) -> Option<&mut LargeIn> {
        let mut large = self.ends.get_mut(end)?.large.iter_mut();
        large.find(|large| large.sequence == sequence)
    }

    /// Notes that a large message has arrived up to `until`, or has begun to. From its first chunk
    /// on it is charged, and gets more memory ahead of the arriving bytes.
    pub(super) fn large_moves(
        &mut self,
        end: u32,
        sequence: u64,
        until: u64,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let budget = context.node.memory;
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        let has_begun = large.arrived == 0;
        large.arrived = until;
        let (length, granted) = (large.length, large.granted);
        let memory = large.memory.as_mut().and_then(ArrivalMemory::lease_mut);
        if let Some(memory) = memory {
            if memory.claim_mut().is_none() {
                memory.charge_to(budget.begin(length.saturating_sub(FIRST_BYTES)));
            }
            if let Some(claim) = memory.claim_mut() {
                claim.begun_with(until.next_multiple_of(PAGES).min(FIRST_BYTES));
            }
        }
        if granted < length && granted - until < AHEAD_BYTES {
            self.want_more(end, sequence, common, context);
        }
        if has_begun {
            self.one_has_begun(common, context);
        }
    }

    /// Requests more memory for an arriving large message if there is room for it, or tries again
    /// later.
    fn want_more(
        &mut self,
        end: u32,
        sequence: u64,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let session = common.shared.clone();
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        let from = large.granted;
        let to = large.length.min(from + MORE_BYTES);
        let Some(memory) = large.memory.as_mut().and_then(ArrivalMemory::lease_mut) else {
            return;
        };
        if large.lacks == Lack::IsComing || to == from {
            return;
        }
        // Memory that the kernel refused before is charged already.
        let is_charged = large.lacks == Lack::Memory
            || memory
                .claim_mut()
                .is_some_and(|claim| context.node.charge(claim, to - from));
        if !is_charged {
            large.lacks = Lack::Room;
            let again = clock::now() + CHECK_FOR_ROOM;
            common.timers.set_sooner(Timer::Memory, again);
            return self.lacks_room(end, common);
        }
        large.lacks = Lack::IsComing;
        let memory = memory.memory().clone();
        self.has_room(end);
        context.wanted.push(MemoryWanted {
            session,
            end,
            purpose: MemoryPurpose::More {
                sequence,
                memory,
                from,
                to,
            },
        });
    }

    /// Notes that a large message has memory up to `to`, or that the kernel gave none.
    pub(crate) fn large_memory_grew(
        &mut self,
        end: u32,
        sequence: u64,
        to: u64,
        populated: Result<(), MemoryError>,
        common: &mut Common,
    ) {
        let Some(large) = self.large_in(end, sequence) else {
            return;
        };
        if large.lacks != Lack::IsComing || large.granted >= to {
            return;
        }
        if let Err(error) = populated {
            large.lacks = Lack::Memory;
            return lacks_memory(&error, common);
        }
        large.lacks = Lack::Nothing;
        large.granted = to;
        let memory = large.memory.as_mut().and_then(ArrivalMemory::lease_mut);
        if let Some(memory) = memory {
            memory.has_pages(to as usize);
        }
        common.session.grant(end, sequence, to);
    }

    /// Requests memory again for large messages that lack it.
    fn large_tries_again(&mut self, common: &mut Common, context: &mut Context<'_>) {
        let mut lacking = Vec::new();
        for (end, receiver) in self.ends.iter() {
            let large = receiver.large.iter();
            let lacks = large.filter(|one| matches!(one.lacks, Lack::Room | Lack::Memory));
            lacking.extend(lacks.map(|one| (end, one.sequence, one.length, one.memory.is_some())));
        }
        self.one_has_begun(common, context);
        for (end, sequence, length, has_some) in lacking {
            if has_some {
                self.want_more(end, sequence, common, context);
            } else if let Some(large) = self.large_in(end, sequence) {
                large.lacks = Lack::Nothing;
                let is_offered = large.is_offered;
                let receiver = self.ends.get(end);
                context.wanted.push(MemoryWanted {
                    session: common.shared.clone(),
                    end,
                    purpose: MemoryPurpose::Large(LargeWanted {
                        sequence,
                        length,
                        is_offered,
                        region: receiver.and_then(|one| one.end.provided.take(length)),
                    }),
                });
            }
        }
    }

    /// Wakes the handle of a receiving end at `retry_at`, however it waits, because it lacks memory
    /// for messages that have arrived. Returns whether the end is here.
    pub(crate) fn retries(
        &mut self,
        end: &ReceiveEnd,
        retry_at: Instant,
        common: &mut Common,
    ) -> bool {
        let receiver = self.ends.get_mut(end.id);
        // The number of an end that was closed may be that of another.
        let Some(receiver) = receiver.filter(|receiver| ptr::eq(&*receiver.end, end)) else {
            return false;
        };
        receiver.retries = Some(retry_at);
        if end.lacks_room.load(Ordering::Relaxed) {
            self.room_is_wanted(end.id, common);
        }
        common.timers.set_sooner(Timer::Memory, retry_at);
        true
    }

    /// Wakes or serves receivers that lack memory, so that they try again.
    pub(super) fn memory_may_be_there(
        &mut self,
        now: Instant,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        for receiver in self.ends.values_mut() {
            match receiver.retries {
                Some(retry_at) if retry_at <= now => {
                    receiver.retries = None;
                    receiver.end.waiters.take(&mut context.wakers);
                }
                // Waking it now would be too soon, and it would sleep on.
                Some(retry_at) => common.timers.set_sooner(Timer::Memory, retry_at),
                None => {}
            }
        }
        self.large_tries_again(common, context);
    }

    /// Continues without the device that wrote to memory of incomplete messages, which request memory
    /// again.
    pub(super) fn lose_device(&mut self, common: &mut Common, context: &mut Context<'_>) {
        common.shared.frame_path.lose_device();
        common.session.ends.withdraw_memory();
        for (end, receiver) in self.ends.iter_mut() {
            let again = receiver.want_again();
            context.wanted.extend(again.map(|wanted| MemoryWanted {
                session: common.shared.clone(),
                end,
                purpose: MemoryPurpose::Large(wanted),
            }));
        }
    }

    /// Hands on a large message whose last byte has arrived, so that nothing writes to its memory
    /// any more.
    pub(super) fn large_arrived(
        &mut self,
        end: u32,
        time: u64,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.ends.get_mut(end) else {
            return;
        };
        if let Some(LargeIn {
            sequence,
            length,
            memory: Some(mut memory),
            target,
            ..
        }) = receiver.large.pop_front()
        {
            // The memory holds the registration too. Its receiver would otherwise leave the last
            // reference to this turn.
            drop(target);
            if let Some(memory) = memory.lease_mut() {
                memory.has_pages(length as usize);
                if let Some(claim) = memory.claim_mut() {
                    claim.finish(length);
                }
            }
            let arrival = LargeArrival {
                sequence,
                length: length as usize,
                time,
                place: LargePlace::Granted(memory),
            };
            receiver.large_came(arrival, &mut context.wakers);
        }
        common.session.handle_large_complete(end);
        self.one_has_begun(common, context);
    }

    /// Requests blocks for the messages that follow one of `length`, if messages of that length may
    /// come in blocks. As many blocks as allowed are allocated outside the turn. If the end has
    /// blocks already, the sender learns which of them it may use again.
    fn want_eager_blocks(
        &mut self,
        end: u32,
        length: u64,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.ends.get_mut(end) else {
            return;
        };
        if !lands(length) {
            return;
        }
        if receiver.has_eager_blocks {
            receiver.end.answer_ask();
            common.session.released(end, &receiver.end.counters());
        } else if common.shared.grants_eager_blocks() {
            receiver.has_eager_blocks = true;
            context.wanted.push(MemoryWanted {
                session: common.shared.clone(),
                end,
                purpose: MemoryPurpose::EagerBlocks,
            });
        }
    }
}

/// Notes that the kernel refuses memory for a message, which then waits.
fn lacks_memory(error: &MemoryError, common: &mut Common) {
    let peer = common.shared.peer().address;
    tracing::debug!(%peer, %error, "a large message waits for memory");
    let again = clock::now() + ASK_KERNEL_AGAIN;
    common.timers.set_sooner(Timer::Memory, again);
}

/// Bytes of a large message that may arrive before it has more memory than it is charged for.
const FIRST_BYTES: u64 = 1 << 20;
/// The steps in which that memory is charged.
const PAGES: u64 = 64 << 10;
/// The step by which a message's memory grows.
const MORE_BYTES: u64 = 4 << 20;
/// The memory grows when less than this is left of it for arriving bytes.
const AHEAD_BYTES: u64 = 2 << 20;
/// Large messages of a session that may have memory and have not begun to arrive.
const MAX_UNBEGUN: usize = 4;
/// The time until the engine looks again for room within the memory limit.
const CHECK_FOR_ROOM: Duration = Duration::from_millis(5);
/// The time until the kernel is asked again for memory that it refused.
const ASK_KERNEL_AGAIN: Duration = Duration::from_millis(20);
