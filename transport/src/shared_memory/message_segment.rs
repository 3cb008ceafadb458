//! Memory files for messages that are longer than their channel's ring.
//!
//! The sender encodes such a message into a segment of its own, passes the
//! descriptor and announces it by a record in the ring. A channel's sender keeps
//! a few segments as numbered *slots*; the receiver keeps its mapping of each
//! slot, so a descriptor travels once and further messages name the slot alone.
//!
//! Rules:
//! 1. As for rings: the sender maps writable and seals, the receiver maps
//!    read-only, and a segment serves one channel of one session.
//! 2. The sender writes a slot only while it is free: from its creation to the
//!    announcement, and again from the moment the receiver has *released* the
//!    message. The pool checks the states; whoever calls `release` answers for
//!    the moment.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use ibex_ring::memory::{Access, Mapping, MemoryError, MemoryUse, class_bytes, create_memfd};

use super::sealed::{self, SegmentRefused};

/// Slots that one channel has at most: as many messages longer than its ring may be on
/// their way at a time. How many bytes these have in all, their channel bounds.
pub const MESSAGE_SLOTS: usize = 64;

/// Slots that short messages go round, so that writer and reader of 1 MiB messages
/// need not take turns (21 GB/s with two slots, 50 with four, without a library).
const ROUND_SLOTS: usize = 4;

/// Messages up to this length are short.
const SHORT_MESSAGE_BYTES: usize = 4 << 20;

/// A side's mapping of a message segment.
#[derive(Debug)]
pub struct MessageSegment {
    memory: Mapping,
}

impl MessageSegment {
    /// The sender's side: zeroed memory for at least `bytes`, and the descriptor
    /// to pass to the peer and then close.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn create(bytes: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let capacity = class_bytes(bytes)?;
        let fd = create_memfd(MemoryUse::LargeMessage, capacity)?;
        let memory = Mapping::of_file(
            MemoryUse::LargeMessage,
            fd.as_fd(),
            capacity,
            Access::ReadWrite,
        )?;
        sealed::seal(&fd, MemoryUse::LargeMessage, capacity)?;
        Ok((Self { memory }, fd))
    }

    /// Maps the receiver's side: checks the segment that the peer passed, and maps it read-only.
    /// The caller has bounded `capacity` by what the channel may use.
    ///
    /// # Errors
    /// [`SegmentRefused`] if it is not what [`MessageSegment::create`] makes, or
    /// there is no room for the mapping.
    pub fn accept(fd: BorrowedFd<'_>, capacity: u64) -> Result<Self, SegmentRefused> {
        let Some(bytes) = usize::try_from(capacity)
            .ok()
            .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(rustix::param::page_size()))
        else {
            return Err(SegmentRefused::Impossible {
                announced: capacity,
            });
        };
        sealed::check(fd, capacity)?;
        let memory = Mapping::of_file(MemoryUse::LargeMessage, fd, bytes, Access::ReadOnly)?;
        Ok(Self { memory })
    }

    /// The first byte and the length. The sender may store behind the address,
    /// the receiver only load.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.base(), self.memory.bytes())
    }
}

/// The sender's slots of one channel.
#[derive(Debug, Default)]
pub struct MessageSegmentPool {
    /// Slots, as many as there were in use at a time.
    slots: Vec<Slot>,
    releases: u64,
}

#[derive(Debug, Default)]
struct Slot {
    segment: Option<MessageSegment>,
    /// The segment's descriptor until a message is announced with it.
    unsent: Option<OwnedFd>,
    busy: bool,
    /// When it was released last, in releases of its pool.
    released: u64,
}

impl MessageSegmentPool {
    /// A pool without segments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A free slot with room for `bytes`, or `None` while every slot is on its
    /// way. Maps and zeroes memory where no free slot is long enough: call it
    /// outside turns.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn take(&mut self, bytes: usize) -> Result<Option<MessageSlot<'_>>, MemoryError> {
        let Some(index) = self.best_free_slot(bytes) else {
            return Ok(None);
        };
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        let fits = slot
            .segment
            .as_ref()
            .is_some_and(|segment| segment.memory.bytes() >= bytes);
        if !fits {
            // The old one first: both at once may be more than there is room for.
            *slot = Slot::default();
            let (segment, fd) = MessageSegment::create(bytes)?;
            slot.segment = Some(segment);
            slot.unsent = Some(fd);
        }
        Ok(Some(MessageSlot {
            slot,
            index: index as u32,
        }))
    }

    /// A slot that [`take`](Self::take) gave and that was not announced since.
    ///
    /// # Panics
    /// If it is no such slot.
    #[must_use]
    pub fn slot(&mut self, index: u32) -> MessageSlot<'_> {
        let slot = &mut self.slots[index as usize];
        assert!(
            slot.segment.is_some() && !slot.busy,
            "slot {index} was not taken"
        );
        MessageSlot { slot, index }
    }

    /// All of the segment in such a slot, to be read.
    ///
    /// # Panics
    /// If it is no such slot.
    #[must_use]
    pub fn written(&self, index: u32) -> &[MaybeUninit<u8>] {
        let slot = &self.slots[index as usize];
        let segment = slot.segment.as_ref().filter(|_| !slot.busy);
        let (base, length) = segment.expect("the slot was taken").memory();
        // SAFETY: as in `MessageSlot::into_bytes`; `&self` keeps anyone from writing there.
        unsafe { slice::from_raw_parts(base.cast().as_ptr(), length) }
    }

    /// The receiver has released the message in this slot (rule 2); returns
    /// whether one was on its way there.
    pub fn release(&mut self, index: u32) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        self.releases += 1;
        slot.released = self.releases;
        std::mem::replace(&mut slot.busy, false)
    }

    /// Frees the segments that no message lies in.
    ///
    /// The receiver learns of it when the slot is filled anew; until then it
    /// keeps its own mapping and with it the memory, so this is for the end of
    /// a channel.
    pub fn trim(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.busy) {
            *slot = Slot::default();
        }
    }

    /// Returns the number of slots with a message that has not been released.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.slots.iter().filter(|slot| slot.busy).count()
    }

    /// The free slot that fits most closely; else an empty one; else the
    /// shortest, to be replaced.
    ///
    /// Short messages go round all slots: memory that both CPUs' own caches have
    /// forgotten is quicker to write than what one of them still shares.
    fn best_free_slot(&self, bytes: usize) -> Option<usize> {
        let none = Slot::default();
        let slot = |index: usize| self.slots.get(index).unwrap_or(&none);
        let rank = |&index: &usize| {
            let (slot, is_of_round) = (slot(index), index < ROUND_SLOTS);
            let length = slot.bytes();
            let is_unused = length == 0 || slot.unsent.is_some();
            let is_new = is_unused && is_of_round && bytes <= SHORT_MESSAGE_BYTES;
            (!is_new, length < bytes, length, slot.released)
        };
        // One that there was no use for yet is taken where no other is free, or by turns.
        let known = self.slots.len().max(ROUND_SLOTS);
        let is_free = |&index: &usize| !slot(index).busy;
        (0..known)
            .filter(is_free)
            .min_by_key(rank)
            .or_else(|| (known < MESSAGE_SLOTS).then_some(known))
            .map(|index| index.min(self.slots.len()))
    }

    /// Empties free slots until all segments together, with one of `more` bytes, have at most
    /// `most` bytes. Empties none if a slot has room for a message of `bytes`. Returns the emptied
    /// slots as a set of bits, which the receiver is to [forget](MessageSlots::forget).
    pub fn make_room(&mut self, bytes: usize, more: usize, most: usize) -> u64 {
        let fits = |slot: &Slot| !slot.busy && slot.bytes() >= bytes;
        if self.slots.iter().any(fits) {
            return 0;
        }
        let mut total: usize = self.slots.iter().map(Slot::bytes).sum();
        let mut emptied = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if total.saturating_add(more) <= most {
                break;
            }
            if !slot.busy && slot.bytes() > 0 {
                total -= slot.bytes();
                *slot = Slot::default();
                emptied |= 1 << index;
            }
        }
        emptied
    }
}

impl Slot {
    fn bytes(&self) -> usize {
        let segment = self.segment.as_ref();
        segment.map_or(0, |segment| segment.memory.bytes())
    }
}

/// A free slot while a message is encoded into it. Dropping it, or forgetting it,
/// leaves the slot free; [`MessageSlot::announce`] makes it busy.
#[derive(Debug)]
pub struct MessageSlot<'pool> {
    slot: &'pool mut Slot,
    index: u32,
}

impl MessageSlot<'_> {
    /// All of the segment, to encode into.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        MessageSlot {
            slot: &mut *self.slot,
            index: self.index,
        }
        .into_bytes()
    }
}

impl<'pool> MessageSlot<'pool> {
    /// All of the segment, for as long as the pool is borrowed.
    #[must_use]
    pub fn into_bytes(self) -> &'pool mut [MaybeUninit<u8>] {
        let (base, length) = self.segment().memory();
        // SAFETY:
        // 1. Valid: a writable mapping of `length` bytes, alive as long as the
        //    pool, which `'pool` borrows; any byte is a valid `MaybeUninit<u8>`.
        // 2. Unique: in this process, the exclusive borrow of a slot that is free
        //    (rule 2). In others, nobody can write (rule 1), and nobody reads before
        //    the announcement.
        unsafe { slice::from_raw_parts_mut(base.cast().as_ptr(), length) }
    }

    /// The slot's number, to be announced.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The segment's length, to be announced.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.segment().memory.bytes()
    }

    /// The message is complete: the slot is busy until it is released. Gives the
    /// descriptor to pass where the receiver does not have the segment yet.
    #[must_use = "a new segment's descriptor has to be passed to the receiver"]
    pub fn announce(self) -> Option<OwnedFd> {
        self.slot.busy = true;
        self.slot.unsent.take()
    }

    fn segment(&self) -> &MessageSegment {
        self.slot
            .segment
            .as_ref()
            .expect("`take` filled the slot, and this value borrows it")
    }
}

/// The receiver's mappings of one channel's slots.
#[derive(Debug, Default)]
pub struct MessageSlots {
    /// Slots, as many as were named.
    slots: Vec<Option<Arc<MessageSegment>>>,
}

impl MessageSlots {
    /// No mapping yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the segment that was passed for a slot, in the place of the one that it had. The
    /// caller has bounded `capacity`.
    ///
    /// A message in the one before that is still held keeps that mapped.
    ///
    /// # Errors
    /// [`SegmentRefused`] if there is no such slot, or the segment is not what it must be.
    pub fn map(
        &mut self,
        slot: u32,
        capacity: u64,
        fd: BorrowedFd<'_>,
    ) -> Result<(), SegmentRefused> {
        let index = slot as usize;
        if index >= MESSAGE_SLOTS {
            return Err(SegmentRefused::NoSuchSlot {
                slot,
                length: capacity,
                capacity: 0,
            });
        }
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Default::default);
        }
        let kept = &mut self.slots[index];
        // The old one first: both at once may be more than there is room for.
        *kept = None;
        *kept = Some(Arc::new(MessageSegment::accept(fd, capacity)?));
        Ok(())
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let segments = self.slots.iter().flatten();
        segments.map(|segment| segment.memory.bytes() as u64).sum()
    }

    /// The slot is empty; a message in its segment that is still held keeps that mapped.
    pub fn forget(&mut self, slot: u32) {
        if let Some(kept) = self.slots.get_mut(slot as usize) {
            *kept = None;
        }
    }

    /// The segment of the slot that a message of `length` bytes was announced in; the reference
    /// keeps it mapped.
    ///
    /// # Errors
    /// [`SegmentRefused`] if there is no such slot, or it is shorter.
    pub fn of_message(
        &self,
        slot: u32,
        length: u64,
    ) -> Result<Arc<MessageSegment>, SegmentRefused> {
        let kept = self.slots.get(slot as usize).and_then(Option::as_ref);
        let capacity = kept.map_or(0, |segment| segment.memory.bytes() as u64);
        kept.filter(|_| length <= capacity)
            .cloned()
            .ok_or(SegmentRefused::NoSuchSlot {
                slot,
                length,
                capacity,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_ring::memory::probe;
    use rustix::fs::ftruncate;
    use rustix::io::Errno;
    use std::sync::atomic::{Ordering::SeqCst, fence};

    impl MessageSlots {
        /// Does what a receiver does with an announcement.
        fn accept(
            &mut self,
            slot: u32,
            length: u64,
            capacity: u64,
            fd: Option<BorrowedFd<'_>>,
        ) -> Result<Arc<MessageSegment>, SegmentRefused> {
            if let Some(fd) = fd {
                self.map(slot, capacity, fd)?;
            }
            self.of_message(slot, length)
        }
    }

    fn first_byte(segment: &MessageSegment) -> u8 {
        // For the compiler the sender's mapping is different memory.
        fence(SeqCst);
        // SAFETY: the mapping is alive and readable, and nothing writes it now.
        unsafe { segment.memory().0.as_ptr().read_volatile() }
    }

    #[test]
    fn a_descriptor_travels_once_and_the_slots_serve_again_in_rotation() {
        let mut pool = MessageSegmentPool::new();
        let mut slots = MessageSlots::new();
        for round in 0..3 * ROUND_SLOTS as u8 {
            let mut slot = pool.take(100_000).unwrap().unwrap();
            slot.bytes()[0].write(round);
            let (index, capacity) = (slot.index(), slot.capacity() as u64);
            let fd = slot.announce();
            assert_eq!(index as usize, round as usize % ROUND_SLOTS);
            assert_eq!(fd.is_some(), (round as usize) < ROUND_SLOTS);

            let segment = slots
                .accept(index, 100_000, capacity, fd.as_ref().map(AsFd::as_fd))
                .unwrap();
            assert_eq!(first_byte(&segment), round);
            assert!(pool.release(index));
        }
    }

    #[test]
    fn a_busy_slot_is_never_given_out() {
        let mut pool = MessageSegmentPool::new();
        let mut given: Vec<u32> = Vec::new();
        while let Some(slot) = pool.take(64 << 10).unwrap() {
            given.push(slot.index());
            let _fd = slot.announce();
        }
        given.sort_unstable();
        assert_eq!(given, Vec::from_iter(0..MESSAGE_SLOTS as u32));
        assert_eq!(pool.busy(), MESSAGE_SLOTS);

        assert!(pool.release(2));
        assert!(!pool.release(2), "it was released already");
        assert!(!pool.release(99));
        assert_eq!(pool.take(64 << 10).unwrap().unwrap().index(), 2);
    }

    #[test]
    fn a_longer_message_replaces_the_shortest_free_segment() {
        let mut pool = MessageSegmentPool::new();
        let mut slots = MessageSlots::new();
        for bytes in [64 << 10, 128 << 10, 256 << 10, 512 << 10] {
            let slot = pool.take(bytes).unwrap().unwrap();
            let (index, capacity) = (slot.index(), slot.capacity() as u64);
            slots
                .accept(
                    index,
                    1,
                    capacity,
                    slot.announce().as_ref().map(AsFd::as_fd),
                )
                .unwrap();
        }
        for index in 0..4 {
            pool.release(index);
        }
        let held = slots.accept(0, 1, 64 << 10, None).unwrap();

        let slot = pool.take(1 << 20).unwrap().unwrap();
        assert_eq!(slot.index(), 0);
        let segment = slots
            .accept(
                0,
                1 << 20,
                1 << 20,
                slot.announce().as_ref().map(AsFd::as_fd),
            )
            .unwrap();
        assert_eq!(segment.memory().1, 1 << 20);
        assert_eq!(
            first_byte(&held),
            0,
            "the old mapping lives while it is held"
        );
        assert_eq!(
            pool.take(200 << 10).unwrap().unwrap().index(),
            2,
            "the closest fit"
        );
    }

    #[test]
    fn free_segments_make_room_for_a_longer_one() {
        let mut pool = MessageSegmentPool::new();
        let held: Vec<u32> = (0..8)
            .map(|_| {
                let slot = pool.take(1 << 20).unwrap().unwrap();
                let index = slot.index();
                let _fd = slot.announce();
                index
            })
            .collect();
        assert_eq!(pool.make_room(4 << 20, 4 << 20, 12 << 20), 0);
        let crowded = pool.make_room(4 << 20, 4 << 20, 8 << 20);
        assert_eq!(crowded, 0, "none is free");
        for &index in &held[1..] {
            pool.release(index);
        }
        assert_eq!(pool.make_room(1 << 20, 1 << 20, 8 << 20), 0, "one fits");
        let emptied = pool.make_room(4 << 20, 4 << 20, 8 << 20);
        assert_eq!(emptied, 0b1_1110);
        assert_eq!(pool.take(4 << 20).unwrap().unwrap().index(), 1);

        let mut slots = MessageSlots::new();
        let (_segment, fd) = MessageSegment::create(64 << 10).unwrap();
        slots.map(63, 64 << 10, fd.as_fd()).unwrap();
        assert!(slots.map(64, 64 << 10, fd.as_fd()).is_err());
        assert_eq!(slots.bytes(), 64 << 10);
        slots.forget(63);
        slots.forget(64);
        assert_eq!(slots.bytes(), 0);
        assert!(slots.of_message(63, 1).is_err());
    }

    #[test]
    fn a_descriptor_is_kept_until_a_message_is_announced_with_it() {
        let mut pool = MessageSegmentPool::new();
        let abandoned = pool.take(64 << 10).unwrap().unwrap();
        assert_eq!(abandoned.index(), 0);
        let slot = pool.take(64 << 10).unwrap().unwrap();
        assert_eq!(slot.index(), 0);
        assert!(slot.announce().is_some());
    }

    #[test]
    fn what_a_peer_announces_wrongly_is_refused() {
        let mut slots = MessageSlots::new();
        let never_filled = slots.accept(1, 10, 64 << 10, None).unwrap_err();
        assert!(matches!(
            never_filled,
            SegmentRefused::NoSuchSlot {
                slot: 1,
                capacity: 0,
                ..
            }
        ));
        let beyond = slots.accept(u32::MAX, 10, 64 << 10, None).unwrap_err();
        assert!(matches!(
            beyond,
            SegmentRefused::NoSuchSlot { slot: u32::MAX, .. }
        ));

        let (_segment, fd) = MessageSegment::create(64 << 10).unwrap();
        let too_long = slots
            .accept(0, (64 << 10) + 1, 64 << 10, Some(fd.as_fd()))
            .unwrap_err();
        assert!(matches!(
            too_long,
            SegmentRefused::NoSuchSlot {
                capacity: 65_536,
                ..
            }
        ));

        for capacity in [0, 1, (64 << 10) + 1, u64::MAX] {
            let (_segment, fd) = MessageSegment::create(64 << 10).unwrap();
            let refused = slots.accept(0, 1, capacity, Some(fd.as_fd())).unwrap_err();
            assert!(
                matches!(refused, SegmentRefused::Impossible { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn segments_are_sealed_and_leave_nothing_behind() {
        let (sender, fd) = MessageSegment::create(100_000).unwrap();
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        let file = probe::inode(&fd);
        let receiver = MessageSegment::accept(fd.as_fd(), sender.memory().1 as u64).unwrap();
        assert_eq!(probe::mappings_of(file), 2);
        drop((sender, receiver));
        assert_eq!(probe::mappings_of(file), 0);
    }
}
