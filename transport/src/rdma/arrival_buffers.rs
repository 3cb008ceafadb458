//! The receive buffers of one receive queue, from posting to arrival, through the messages
//! that hold them, and back.
//!
//! Rules:
//! 1. As many buffers are posted as the peers' credit and the reserve require, regardless of what
//!    applications hold: another buffer replaces an arrived one at once. Replacement lags by less
//!    than [`REPOST_BATCH`] buffers, so that many more are posted.
//! 2. The receiver reads a frame where it arrived as long as a free buffer can replace the frame's
//!    buffer. When none can, the frame is copied out and its buffer is posted again. So messages
//!    that are held for ever cost the zero-copy path, but never the credit.
//! 3. A queue pair that is destroyed may have taken buffers of a shared queue and not completed
//!    them. Those buffers are replaced too, once they are [overdue](super::overdue). The device may
//!    still have such a buffer, so the buffer counts as outstanding until it completes. The receive
//!    queue and the completion queue are made for `posted` and `replaceable` together, and no more
//!    than `replaceable` buffers are replaced.

use std::collections::BTreeMap;

use ibex_ring::memory::{BufferLease, BufferSlab, FreeBuffers, OwnedBuffer};
use ibex_verbs::{
    MemoryRegion, Operation, PostError, ProtectionDomain, RECEIVE_BATCH, ReceiveQueue,
    ReceiveRequest, RegionAccess, VerbsError, WorkId,
};

use super::{device_memory::DeviceSlab, overdue::Overdue};

/// The least number of receives that are posted with one call.
pub(crate) const REPOST_BATCH: u32 = 16;

/// The buffers of one receive queue.
#[derive(Debug)]
pub(crate) struct ArrivalBuffers {
    region: MemoryRegion<DeviceSlab>,
    free: FreeBuffers,
    /// The last posting of each buffer, by the buffer's number.
    postings: Box<[Posting]>,
    /// Buffers that [`refill`](Self::refill) is to post.
    missing: u32,
    /// The number of all postings so far.
    posted: u64,
    overdue: Overdue,
    /// Buffers that were posted, never completed and were replaced, by number. The device may write
    /// to them as long as the queue exists.
    written_off: BTreeMap<u32, OwnedBuffer>,
    /// Buffers that may be written off and replaced (rule 3).
    replaceable: u32,
    /// Number of further buffers that should have been written off and could not be replaced.
    unreplaced: usize,
    /// Number of refills of the arrival memory: one for each `frames_per_refill` frames.
    /// `frames_to_refill` more frames complete the next one.
    refills: u64,
    frames_per_refill: u64,
    frames_to_refill: u64,
}

/// The last posting of a buffer.
#[derive(Debug, Default)]
struct Posting {
    /// `Some` until it has completed.
    buffer: Option<OwnedBuffer>,
    /// The number of the posting among those of this buffer.
    generation: u32,
    /// The number of the posting among those of all buffers.
    number: u64,
}

/// A buffer with a frame that arrived.
#[derive(Debug)]
pub(crate) struct ArrivedBuffer {
    /// The buffer; dropping the lease gives it back.
    pub(crate) lease: BufferLease,
    /// Number of refills of the arrival memory so far.
    pub(crate) refills: u64,
    /// No buffer could replace this one, so it has to be returned at once (rule 2).
    pub(crate) is_scarce: bool,
}

impl ArrivalBuffers {
    /// Registers `posted + held` buffers, of which `posted` are to be posted. Their queue has room
    /// for `posted + replaceable`.
    ///
    /// # Errors
    /// [`VerbsError`] if there is no memory, or it may not be locked.
    pub(crate) fn register(
        domain: &ProtectionDomain,
        posted: u32,
        replaceable: u32,
        held: u32,
        buffer_bytes: usize,
    ) -> Result<Self, VerbsError> {
        let buffers = posted + held;
        let frames_per_refill = u64::from(held / 2).max(1);
        let slab = BufferSlab::allocate(buffers, buffer_bytes)
            .map_err(|error| VerbsError::Other(error.into()))?;
        let memory = DeviceSlab(slab.clone());
        let region = MemoryRegion::register(domain, memory, RegionAccess::RECEIVE)?;
        tracing::debug!(
            bytes = slab.bytes(),
            in_huge_pages = slab.huge_bytes(),
            "receive buffers are registered"
        );
        Ok(Self {
            region,
            free: FreeBuffers::all_of(&slab),
            postings: (0..buffers).map(|_| Posting::default()).collect(),
            missing: posted,
            posted: 0,
            overdue: Overdue::default(),
            written_off: BTreeMap::new(),
            replaceable,
            unreplaced: 0,
            refills: 0,
            frames_per_refill,
            frames_to_refill: frames_per_refill,
        })
    }

    /// Takes back the buffer of a receive that has completed; `None` if `id` names no present
    /// posting of these buffers.
    #[inline(always)]
    pub(crate) fn complete(&mut self, id: WorkId) -> Option<ArrivedBuffer> {
        if id.operation() != Operation::Receive {
            return None;
        }
        let posting = self.postings.get_mut(id.slot() as usize)?;
        if posting.generation != id.generation() {
            return None;
        }
        let buffer = posting.buffer.take()?;
        self.missing += 1;
        Some(self.arrived(buffer))
    }

    /// Takes back a buffer that was written off. It is not posted again, because another was posted
    /// in its place.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete_late(&mut self, id: WorkId) -> Option<ArrivedBuffer> {
        let posting = self.postings.get(id.slot() as usize)?;
        if id.operation() != Operation::Receive || posting.generation != id.generation() {
            return None;
        }
        let buffer = self.written_off.remove(&id.slot())?;
        Some(self.arrived(buffer))
    }

    #[inline(always)]
    fn arrived(&mut self, buffer: OwnedBuffer) -> ArrivedBuffer {
        self.frames_to_refill -= 1;
        if self.frames_to_refill == 0 {
            self.frames_to_refill = self.frames_per_refill;
            self.refills += 1;
        }
        ArrivedBuffer {
            is_scarce: !self.free.has(self.missing as usize),
            refills: self.refills,
            lease: buffer.lease(),
        }
    }

    // ---- Receives that queue pairs keep ----------------------------------------------

    /// Notes that a queue pair was destroyed before it was drained: the receives that it had
    /// taken of the queue may never complete.
    pub(crate) fn may_miss_some(&mut self, queue: &ReceiveQueue) {
        self.overdue.begin(self.posted, self.outstanding(queue));
    }

    /// Notes that the device has at most `left` receives, whatever the count here is.
    pub(crate) fn has_only(&mut self, left: u32) {
        if let Some(before) = self.overdue.before() {
            self.write_off(before, left as usize);
        }
    }

    /// Returns the number of receives that are posted and expected to complete.
    pub(crate) fn outstanding(&self, queue: &ReceiveQueue) -> u32 {
        queue.outstanding() - self.written_off.len() as u32
    }

    /// Gives up the receives that were posted before posting `before`, except for the last `left`
    /// of them. Lets others be posted in their place, as far as rule 3 allows.
    #[cold]
    fn write_off(&mut self, before: u64, left: usize) {
        let postings = (0_u32..).zip(&self.postings);
        let mut late: Vec<_> = postings
            .filter(|(_, posting)| posting.buffer.is_some() && posting.number < before)
            .map(|(index, posting)| (posting.number, index))
            .collect();
        late.sort_unstable();
        late.truncate(late.len().saturating_sub(left));
        let room = self.replaceable as usize - self.written_off.len();
        self.unreplaced = late.len().saturating_sub(room);
        late.truncate(room);
        for &(_, index) in &late {
            let buffer = self.postings[index as usize].buffer.take();
            self.written_off
                .extend(buffer.map(|buffer| (index, buffer)));
        }
        let lost = late.len() as u32;
        self.missing += lost;
        // Peers may end queue pairs as often as they like, so only each doubling is logged.
        let in_all = self.written_off.len();
        if lost > 0 && in_all.checked_ilog2() != (in_all - late.len()).checked_ilog2() {
            ibex_base::warn_limited!(
                lost,
                lost,
                in_all,
                "receive buffers went with a queue pair that was never drained; others are posted"
            );
        }
    }

    /// Returns how many buffers are lost, if they are more than can be replaced. The device then
    /// has to be reopened.
    #[must_use]
    pub(crate) fn is_spent(&self) -> Option<usize> {
        let lost = self.written_off.len() + self.unreplaced;
        (self.unreplaced > 0).then_some(lost)
    }

    /// Returns whether [`refill`](Self::refill) is due.
    #[inline]
    #[must_use]
    pub(crate) fn wants_refill(&self) -> bool {
        self.missing >= REPOST_BATCH
    }

    /// Posts the buffers that are missing from the queue.
    ///
    /// # Errors
    /// [`PostError`] if the queue takes no more, which only a broken one does.
    pub(crate) fn refill(&mut self, queue: &mut ReceiveQueue) -> Result<(), PostError> {
        let outstanding = self.outstanding(queue);
        if let Some(before) = self.overdue.poll(self.posted, outstanding) {
            self.write_off(before, 0);
        }
        self.free.collect();
        while self.missing > 0 {
            let mut taken = [0; RECEIVE_BATCH];
            let mut count = 0;
            let mut batch = queue.batch();
            while count < RECEIVE_BATCH.min(self.missing as usize) {
                let Some(buffer) = self.free.take() else {
                    break;
                };
                let index = buffer.index() as usize;
                let posting = &mut self.postings[index];
                let generation = posting.generation.wrapping_add(1) & WorkId::GENERATION_MASK;
                posting.generation = generation;
                posting.number = self.posted;
                self.posted += 1;
                let id = WorkId::new(Operation::Receive, buffer.index(), generation);
                let bytes = self.region.memory().0.buffer_bytes();
                let entries = [self.region.entry(index * bytes..(index + 1) * bytes)];
                posting.buffer = Some(buffer);
                taken[count] = index;
                count += 1;
                if batch.push(&ReceiveRequest::new(id, &entries)).is_err() {
                    break;
                }
            }
            let posted = batch.post();
            let accepted = match &posted {
                Ok(accepted) => *accepted,
                Err(error) => error.accepted,
            };
            for &index in &taken[accepted as usize..count] {
                if let Some(buffer) = self.postings[index].buffer.take() {
                    self.free.put_back(buffer);
                }
            }
            self.missing -= accepted;
            posted?;
            if accepted == 0 {
                // Messages hold more buffers than intended; `is_scarce` makes receivers return
                // them.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the memory of all buffers.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn slab(&self) -> &BufferSlab {
        &self.region.memory().0
    }
}
