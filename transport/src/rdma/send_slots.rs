//! The send queue of a session as its connection sees it: the place of each request, the bytes that
//! the request uses in the head slab, and the requests that a completion covers.
//!
//! Requests complete in order. A signaled request that completes covers itself and all requests
//! before it, so two counters suffice: the number posted, and the number done. A completion returns
//! the place's number with the lap in which the place was used, so that a late or spurious
//! completion is recognised.
#![forbid(unsafe_code)]

use ibex_verbs::{Operation, WorkId};

/// The places of a send queue.
#[derive(Debug)]
pub(crate) struct SendSlots {
    posted: u64,
    done: u64,
    /// Requests that may be outstanding at a time.
    requests: usize,
    /// By place, the end of the request's bytes in the head slab. The number of places is a power
    /// of two.
    staged_until: Box<[u64]>,

    // The head slab, a ring: its bytes are used and freed in order.
    slab_bytes: u64,
    staged: u64,
    free_until: u64,
}

impl SendSlots {
    /// Makes slots for the given number of outstanding requests and bytes of the head slab.
    #[must_use]
    pub(crate) fn new(requests: u32, slab_bytes: usize) -> Self {
        Self {
            posted: 0,
            done: 0,
            requests: requests as usize,
            staged_until: (0..requests.next_power_of_two()).map(|_| 0).collect(),
            slab_bytes: slab_bytes as u64,
            staged: 0,
            free_until: slab_bytes as u64,
        }
    }

    /// Returns the number of requests that may still be posted.
    #[inline]
    #[must_use]
    pub(crate) fn room(&self) -> usize {
        self.requests - (self.posted - self.done) as usize
    }

    /// Returns the number of the last request, if it is not done.
    #[inline]
    #[must_use]
    pub(crate) fn in_flight(&self) -> Option<u64> {
        (self.posted > self.done).then_some(self.posted)
    }

    /// Returns the number of requests that were posted, which is the number of the last one.
    #[inline]
    #[must_use]
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns the number of requests that are done, which is the number of the last one done.
    #[inline]
    #[must_use]
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Returns whether a head of `bytes` fits into the slab at any position.
    #[inline]
    #[must_use]
    pub(crate) fn has_stage(&self, bytes: usize) -> bool {
        // Up to a head's length may be skipped at the end of the slab.
        self.staged + 2 * bytes as u64 <= self.free_until
    }

    /// Returns a place in the slab for a head of `bytes`, for which [`has_stage`](Self::has_stage)
    /// returned true. The place belongs to the next request that is posted.
    #[inline]
    pub(crate) fn stage(&mut self, bytes: usize) -> usize {
        let at = self.staged % self.slab_bytes;
        let skipped = if at + bytes as u64 > self.slab_bytes {
            self.slab_bytes - at
        } else {
            0
        };
        self.staged += skipped + bytes as u64;
        debug_assert!(self.staged <= self.free_until);
        ((self.staged - bytes as u64) % self.slab_bytes) as usize
    }

    /// Returns the identifier that the next request gets.
    #[inline]
    #[must_use]
    pub(crate) fn next_id(&self) -> WorkId {
        self.id_of(self.posted)
    }

    /// Returns the identifier of the next request. `staged_until` is the end of the bytes that were
    /// [staged](Self::staged) up to and including it.
    #[inline(always)]
    pub(crate) fn post(&mut self, staged_until: u64) -> WorkId {
        debug_assert!(self.room() > 0);
        let id = self.next_id();
        let place = self.place_of(self.posted);
        self.staged_until[place] = staged_until;
        self.posted += 1;
        id
    }

    /// Returns the bytes staged so far, including skipped bytes.
    #[inline]
    #[must_use]
    pub(crate) fn staged(&self) -> u64 {
        self.staged
    }

    /// Handles a completion. Returns the number of requests that it completes, or `None` if it
    /// belongs to no outstanding request.
    #[inline]
    pub(crate) fn complete(&mut self, id: WorkId) -> Option<u32> {
        let slot = id.slot() as usize;
        let ahead = slot.wrapping_sub(self.place_of(self.done)) & (self.staged_until.len() - 1);
        let number = self.done + ahead as u64;
        if number >= self.posted || self.id_of(number) != id {
            return None;
        }
        self.done = number + 1;
        self.free_until = self.staged_until[slot] + self.slab_bytes;
        Some(ahead as u32 + 1)
    }

    #[inline]
    fn place_of(&self, number: u64) -> usize {
        number as usize & (self.staged_until.len() - 1)
    }

    #[inline]
    fn id_of(&self, number: u64) -> WorkId {
        let lap = number >> self.staged_until.len().trailing_zeros();
        WorkId::new(Operation::Send, self.place_of(number) as u32, lap as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(slots: &mut SendSlots, bytes: usize) -> (WorkId, usize) {
        assert!(slots.has_stage(bytes));
        let at = slots.stage(bytes);
        (slots.post(slots.staged()), at)
    }

    #[test]
    fn a_completion_tells_of_all_before_it() {
        let mut slots = SendSlots::new(4, 1024);
        let ids: Vec<_> = (0..4).map(|_| post(&mut slots, 16).0).collect();
        assert_eq!((slots.room(), slots.in_flight()), (0, Some(4)));
        assert_eq!(slots.complete(ids[2]), Some(3));
        assert_eq!(slots.complete(ids[1]), None, "that is done already");
        assert_eq!((slots.room(), slots.done()), (3, 3));
        assert_eq!(slots.complete(ids[3]), Some(1));
        assert_eq!(slots.in_flight(), None);
    }

    #[test]
    fn an_earlier_lap_is_not_this_one() {
        let mut slots = SendSlots::new(2, 1024);
        let (first, _) = post(&mut slots, 8);
        assert_eq!(slots.complete(first), Some(1));
        let ids = [post(&mut slots, 8).0, post(&mut slots, 8).0];
        assert_eq!(ids[1].slot(), first.slot());
        assert_eq!(slots.complete(first), None);
        assert_eq!(slots.complete(WorkId::new(Operation::Send, 99, 0)), None);
        assert_eq!(slots.complete(ids[1]), Some(2));
    }

    #[test]
    fn heads_never_overlap_and_never_cross_the_end() {
        let mut slots = SendSlots::new(8, 100);
        let mut out = std::collections::VecDeque::<(WorkId, usize, usize)>::new();
        for round in 0..200 {
            let bytes = 1 + round * 7 % 40;
            while !slots.has_stage(bytes) || slots.room() == 0 {
                let (id, ..) = out.pop_front().unwrap();
                assert_eq!(slots.complete(id), Some(1));
            }
            let (id, at) = post(&mut slots, bytes);
            assert!(at + bytes <= 100);
            for &(_, start, end) in &out {
                assert!(at + bytes <= start || end <= at);
            }
            out.push_back((id, at, at + bytes));
        }
    }
}
