//! Announced and incomplete large messages of a receiving end.

use std::{mem, ptr::NonNull};

use ibex_ring::{memory::LargeLease, parking::Wakers};

use super::receivers::ReceiveLink;
use crate::endpoint::receive_end::{LargeArrival, ReceiveEnd};

/// A large message that is arriving.
pub(super) struct LargeIn {
    pub(super) sequence: u64,
    pub(super) length: u64,
    /// The message's memory was requested, or is present.
    pub(super) is_wanted: bool,
    pub(super) memory: Option<LargeLease>,
    /// Position in the message up to which the peer may send.
    pub(super) granted: u64,
    /// Position up to which the message has arrived.
    pub(super) arrived: u64,
    pub(super) lacks: Lack,
    /// The peer writes the message: until it says that it is done, or can write no more, no other
    /// code may use the memory.
    pub(super) is_the_peers: bool,
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

impl ReceiveLink {
    /// Returns whether a large message waits until others are released.
    #[inline]
    pub(super) fn waits_for_release(&self) -> bool {
        self.large.back().is_some_and(|large| !large.is_wanted)
    }

    /// Returns the next large message for which memory may be requested, and marks it as wanted. If
    /// the limit does not allow one, the next guard that settles rings.
    pub(super) fn next_wanted(&mut self) -> Option<(u64, u64)> {
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
        next.is_wanted = true;
        self.large_wanted = wanted;
        Some((next.sequence, next.length))
    }

    /// Takes back the memory that the peer was granted for incomplete messages.
    pub(super) fn withdraw_large(&mut self) -> impl Iterator<Item = LargeLease> {
        let large = self.large.iter_mut().filter(|large| large.is_the_peers);
        large.filter_map(|large| large.memory.take())
    }

    /// Returns the messages whose memory was [withdrawn](Self::withdraw_large), which now want
    /// memory again.
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

    /// Forgets the incomplete large messages. Returns the memory that the peer may be writing to.
    pub(super) fn forget_large(&mut self) -> impl Iterator<Item = LargeLease> {
        let large = self.large.drain(..).filter(|large| large.is_the_peers);
        large.filter_map(|large| large.memory)
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

    /// Returns whether more data of a granted message is to arrive.
    pub(super) fn expects_chunk(&self) -> bool {
        self.large
            .front()
            .is_some_and(|large| large.memory.is_some())
    }
}
