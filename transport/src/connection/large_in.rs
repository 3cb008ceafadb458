//! A receiving end's large messages that are announced and not complete.

use std::{mem, ptr::NonNull};

use ibex_ring::{memory::LargeLease, parking::Wakers};

use super::receivers::ReceiveLink;
use crate::endpoint::receive_end::{LargeArrival, ReceiveEnd};

/// A large message on its way in.
pub(super) struct LargeIn {
    pub(super) sequence: u64,
    pub(super) length: u64,
    /// The message's memory is wanted, or here.
    pub(super) is_wanted: bool,
    pub(super) memory: Option<LargeLease>,
    /// Position in it up to which the peer may go.
    pub(super) granted: u64,
    /// Position up to which it has come.
    pub(super) arrived: u64,
    pub(super) lacks: Lack,
    /// The peer writes it: until it says that it is done, or can write no more, the memory
    /// is nobody else's.
    pub(super) is_the_peers: bool,
}

/// Lack of a large message on its way in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// More memory is on its way.
    IsComing,
    /// There is no room for more; it is looked for again.
    Room,
    /// The kernel gave none; it is asked again.
    Memory,
}

impl ReceiveLink {
    /// Returns whether a large message waits for others to be released.
    #[inline]
    pub(super) fn waits_for_release(&self) -> bool {
        self.large.back().is_some_and(|large| !large.is_wanted)
    }

    /// The next large message for which memory may be had, now wanted. If it may not, the
    /// next guard that settles rings for it.
    pub(super) fn next_wanted(&mut self) -> Option<(u64, u64)> {
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

    /// Hands a large message to the receiver, and wakes who waits for it.
    pub(super) fn large_came(&self, arrival: LargeArrival, wakers: &mut Wakers) {
        self.end.large_came(arrival);
        self.end.waiters.take(wakers);
    }

    /// Returns where `bytes` at `offset` of a granted message go; `None` if it is gone.
    pub(super) fn place_of(&self, sequence: u64, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let large = self.large.iter().find(|one| one.sequence == sequence)?;
        let memory = large.memory.as_ref()?;
        debug_assert!(offset + bytes as u64 <= large.length);
        // SAFETY: the session checked that the bytes lie inside the granted message.
        Some(unsafe { memory.base().add(offset as usize) })
    }

    /// Returns whether a granted message has not begun to arrive, or is in the middle.
    pub(super) fn expects_chunk(&self) -> bool {
        self.large
            .front()
            .is_some_and(|large| large.memory.is_some())
    }
}
