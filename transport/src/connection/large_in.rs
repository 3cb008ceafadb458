//! Announced and incomplete large messages of a receiving end.

use std::{mem, ptr::NonNull, sync::Arc};

use ibex_ring::{memory::LargeLease, parking::Wakers};

use super::{Context, receivers::ReceiverState};
#[cfg(any(test, feature = "verbs"))]
use crate::rdma::RdmaPort;
use crate::{
    endpoint::receive_end::{LargeArrival, ReceiveEnd},
    rdma::RegisteredMessage,
    wire::{ArrivalMemory, LargeWanted},
};

/// A large message that is arriving.
pub(super) struct LargeIn {
    pub(super) sequence: u64,
    pub(super) length: u64,
    /// The message's memory was requested, or is present.
    pub(super) is_wanted: bool,
    pub(super) memory: Option<ArrivalMemory>,
    /// The message may be read in the peer's memory.
    pub(super) is_offered: bool,
    /// That memory, if the message is read into it.
    pub(super) target: Option<Arc<RegisteredMessage>>,
    /// Position in the message up to which the peer may send.
    pub(super) granted: u64,
    /// Position up to which the message has arrived.
    pub(super) arrived: u64,
    pub(super) lacks: Lack,
    /// A device writes the message, the peer's or this end's: until that is done, or it can write no
    /// more, no other code may use the memory.
    pub(super) is_the_devices: bool,
}

impl LargeIn {
    /// Takes over the message's memory. Other memory may have come before, where it was requested
    /// again.
    pub(super) fn take_memory(&mut self, memory: ArrivalMemory, context: &mut Context<'_>) {
        if let Some(before) = self.memory.replace(memory) {
            context.leave(before);
        }
    }
}

/// The resource that an arriving large message lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// More memory was requested.
    IsComing,
    /// There is no room for more within the limit; the engine tries again.
    Room,
    /// The kernel refused memory; the engine asks again.
    Memory,
}

impl ReceiverState {
    /// Returns whether a large message waits until others are released.
    #[inline]
    pub(super) fn waits_for_release(&self) -> bool {
        self.large.back().is_some_and(|large| !large.is_wanted)
    }

    /// Returns the next large message for which memory may be requested, and marks it as wanted. Where
    /// the node `has_room` for none, it is one that fits into a region of the program. If the limit does
    /// not allow one, the next guard that settles rings.
    pub(super) fn next_wanted(&mut self, has_room: bool) -> Option<LargeWanted> {
        let limit = self.end.state.agreed()?.large_bytes();
        let next = self.large.iter_mut().find(|large| !large.is_wanted)?;
        let wanted = self.large_wanted + next.length;
        // One message may always be unreleased, however long it is.
        let limit = limit.max(next.length);
        let fits = |end: &ReceiveEnd| wanted - end.large_released.get() <= limit;
        if !fits(&self.end) {
            self.end.answer_ask();
            if !fits(&self.end) {
                return None;
            }
        }
        let region = self.end.provided.take(next.length);
        if region.is_none() && !has_room {
            return None;
        }
        next.is_wanted = true;
        self.large_wanted = wanted;
        Some(LargeWanted {
            sequence: next.sequence,
            length: next.length,
            is_offered: next.is_offered,
            region,
        })
    }

    /// Takes back the node's memory of incomplete messages that a device was writing.
    pub(super) fn withdraw_large(&mut self) -> impl Iterator<Item = LargeLease> {
        let large = self.large.iter_mut();
        let large = large.filter(|large| large.is_the_devices);
        large.filter_map(|large| {
            large
                .memory
                .take_if(|memory| memory.lease_mut().is_some())?
                .into_lease()
        })
    }

    /// Returns the messages whose memory was [withdrawn](Self::withdraw_large), which now want
    /// memory again, and those in regions, which are to be registered anew.
    pub(super) fn want_again(&mut self) -> impl Iterator<Item = LargeWanted> {
        self.has_eager_blocks = false;
        let provided = &self.end.provided;
        self.large.iter_mut().filter_map(|large| {
            let was_the_devices = mem::take(&mut large.is_the_devices);
            was_the_devices.then(|| {
                (large.granted, large.arrived) = (0, 0);
                (large.is_offered, large.target) = (false, None);
                let region = large.memory.take().and_then(ArrivalMemory::into_region);
                LargeWanted {
                    sequence: large.sequence,
                    length: large.length,
                    is_offered: false,
                    region: region.or_else(|| provided.take(large.length)),
                }
            })
        })
    }

    /// Takes the memory of incomplete large messages that a device may be writing to.
    pub(super) fn take_the_devices(&mut self) -> impl Iterator<Item = ArrivalMemory> {
        let large = self.large.iter_mut().filter(|large| large.is_the_devices);
        large.filter_map(|large| large.memory.take())
    }

    /// Hands a large message to the receiver, and wakes the tasks and threads that wait for it.
    pub(super) fn large_came(&self, arrival: LargeArrival, wakers: &mut Wakers) {
        self.end.large_came(arrival);
        self.end.waiters.take(wakers);
    }

    /// Returns the destination of `bytes` at `offset` of a granted message; `None` if the message
    /// is gone.
    pub(super) fn place_of(&self, sequence: u64, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let large = self.large.iter().find(|one| one.sequence == sequence)?;
        let memory = large.memory.as_ref()?;
        debug_assert!(offset + bytes as u64 <= large.length);
        // SAFETY: the session checked that the bytes lie inside the granted message.
        Some(unsafe { memory.base().add(offset as usize) })
    }

    /// Returns the registered memory that a message is read into.
    #[cfg(any(test, feature = "verbs"))]
    pub(super) fn target_of(&self, sequence: u64) -> Option<&Arc<RegisteredMessage>> {
        let mut large = self.large.iter();
        large.find(|one| one.sequence == sequence)?.target.as_ref()
    }

    /// Returns that memory as it is registered with the port of a rail.
    #[cfg(any(test, feature = "verbs"))]
    pub(super) fn target_at(
        &self,
        sequence: u64,
        rdma_port: &RdmaPort,
    ) -> Option<Arc<RegisteredMessage>> {
        let mut large = self.large.iter();
        let large = large.find(|one| one.sequence == sequence && one.target.is_some())?;
        large
            .memory
            .as_ref()?
            .target(rdma_port, large.length as usize)
    }

    /// Returns whether more data of a granted message is to arrive.
    pub(super) fn expects_chunk(&self) -> bool {
        self.large
            .front()
            .is_some_and(|large| large.memory.is_some())
    }
}
