//! Memory files for messages that are longer than their channel's ring.
//!
//! The sender encodes such a message into a segment of its own, passes the descriptor and announces
//! the message by a record in the ring. A channel's sender keeps a few segments as numbered
//! *slots*. The receiver keeps its mapping of each slot, so a descriptor travels once and further
//! messages name only the slot.
//!
//! Rules:
//! 1. As for rings: the sender maps writable and seals, the receiver maps
//!    read-only, and a segment serves one channel of one session.
//! 2. The sender writes a slot only while it is free: from its creation to the announcement, and
//!    again from the moment the receiver has *released* the message. The pool checks the states;
//!    the caller of `release` is responsible for the right moment.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use ibex_ring::memory::{Access, Mapping, MemoryError, MemoryUse, class_bytes, create_memfd};

use super::aside::PassedFd;
use super::sealed::{self, SegmentRefused};

/// Most slots of one channel, that is, most unreleased messages that are longer than its ring. The
/// channel bounds their total bytes.
pub const MESSAGE_SLOTS: usize = 64;

/// Slots that short messages use in rotation, so that writer and reader of 1 MiB messages need not
/// alternate (21 GB/s with two slots, 50 with four, without a library).
const ROUND_SLOTS: usize = 4;

/// Messages up to this length are short.
const SHORT_MESSAGE_BYTES: usize = 4 << 20;

/// A side's mapping of a message segment.
#[derive(Debug)]
pub struct MessageSegment {
    memory: Mapping,
}

impl MessageSegment {
    /// Makes the sender's side: zeroed memory for at least `bytes`, and the descriptor to pass to
    /// the peer and then close.
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
    /// [`SegmentRefused`] if the segment is not as [`MessageSegment::create`] makes it, or if there
    /// is no room for the mapping.
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

    /// Returns the first byte and the length. The sender may store through the address, the
    /// receiver may only load.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.base(), self.memory.bytes())
    }
}

/// The sender's slots of one channel.
#[derive(Debug, Default)]
pub struct MessageSegmentPool {
    /// Slots; their number is the most that were in use at a time.
    slots: Vec<Slot>,
    releases: u64,
}

#[derive(Debug, Default)]
struct Slot {
    segment: Option<MessageSegment>,
    /// The segment's descriptor until a message is announced with it.
    unsent: Option<OwnedFd>,
    busy: bool,
    /// Time of the last release, counted in releases of the pool.
    released: u64,
}

impl MessageSegmentPool {
    /// Makes a pool without segments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a free slot with room for `bytes`, or `None` while every slot holds an unreleased
    /// message. Maps and zeroes memory if no free slot is long enough, so it must be called outside
    /// turns.
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
            // The old segment goes first, because there may be no room for both at once.
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

    /// Returns a slot that [`take`](Self::take) returned and that was not announced since.
    ///
    /// # Panics
    /// If [`take`](Self::take) did not return this slot, or the slot was announced since.
    #[must_use]
    pub fn slot(&mut self, index: u32) -> MessageSlot<'_> {
        let slot = &mut self.slots[index as usize];
        assert!(
            slot.segment.is_some() && !slot.busy,
            "slot {index} was not taken"
        );
        MessageSlot { slot, index }
    }

    /// Returns the whole segment in a slot that [`take`](Self::take) returned, for reading.
    ///
    /// # Panics
    /// If [`take`](Self::take) did not return this slot, or the slot was announced since.
    #[must_use]
    pub fn written(&self, index: u32) -> &[MaybeUninit<u8>] {
        let slot = &self.slots[index as usize];
        let segment = slot.segment.as_ref().filter(|_| !slot.busy);
        let (base, length) = segment.expect("the slot was taken").memory();
        // SAFETY: as in `MessageSlot::into_bytes`; `&self` excludes writers.
        unsafe { slice::from_raw_parts(base.cast().as_ptr(), length) }
    }

    /// Notes that the receiver has released the message in this slot (rule 2). Returns whether the
    /// slot held an unreleased message.
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
    /// The receiver learns of it when the slot gets a new segment. Until then the receiver's
    /// mapping keeps the memory, so this is for the end of a channel.
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

    /// Returns the free slot that fits most closely; otherwise an empty slot; otherwise the
    /// shortest, to be replaced.
    ///
    /// Short messages rotate through the first slots: memory that neither CPU has in its own cache
    /// is faster to write than memory that one of them still shares.
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
        // An unused slot is taken if no other is free, or in rotation.
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
    /// Returns the whole segment, to encode into.
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
    /// Returns the whole segment, for as long as the pool is borrowed.
    #[must_use]
    pub fn into_bytes(self) -> &'pool mut [MaybeUninit<u8>] {
        let (base, length) = self.segment().memory();
        // SAFETY:
        // 1. Valid: a writable mapping of `length` bytes, alive as long as the
        //    pool, which `'pool` borrows; any byte is a valid `MaybeUninit<u8>`.
        // 2. Unique: in this process, the exclusive borrow of a slot that is free (rule 2). In
        //    other processes, no thread can write (rule 1), and none reads before the announcement.
        unsafe { slice::from_raw_parts_mut(base.cast().as_ptr(), length) }
    }

    /// Returns the slot's number, to be announced.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the segment's length, to be announced.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.segment().memory.bytes()
    }

    /// Marks the message as complete: the slot is busy until it is released. Returns the descriptor
    /// to pass if the receiver does not have the segment yet.
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

/// The memory of a message segment that the peer passed, until the message's turn comes.
#[derive(Debug)]
pub enum PassedSegment {
    /// A descriptor, to be mapped by the thread that receives the message.
    Fd(PassedFd),
    /// A mapping, which needs no descriptor.
    Mapped(Arc<MessageSegment>),
}

impl PassedSegment {
    /// Maps the segment now, so that it takes none of the descriptors that this process may open. If
    /// the kernel has no room, the descriptor stays, and `map` tries again. The caller
    /// has bounded `capacity`.
    ///
    /// # Errors
    /// [`SegmentRefused`] if the segment does not pass the checks.
    pub fn mapped(fd: PassedFd, capacity: u64) -> Result<Self, SegmentRefused> {
        match MessageSegment::accept(fd.as_fd(), capacity) {
            Ok(segment) => Ok(Self::Mapped(Arc::new(segment))),
            Err(SegmentRefused::Memory(_)) => Ok(Self::Fd(fd)),
            Err(refused) => Err(refused),
        }
    }

    /// Returns the mapping, which is made now if there is none.
    fn map(&self, capacity: u64) -> Result<Arc<MessageSegment>, SegmentRefused> {
        match self {
            Self::Fd(fd) => MessageSegment::accept(fd.as_fd(), capacity).map(Arc::new),
            Self::Mapped(segment) => Ok(segment.clone()),
        }
    }
}

/// The receiver's mappings of one channel's slots.
#[derive(Debug, Default)]
pub struct MessageSlots {
    /// Slots, up to the highest that was named.
    slots: Vec<Option<Arc<MessageSegment>>>,
}

impl MessageSlots {
    /// Makes an empty set of mappings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the segment that was passed for a slot, and replaces its earlier segment. The caller
    /// has bounded `capacity`.
    ///
    /// A held message in the earlier segment keeps that segment mapped.
    ///
    /// # Errors
    /// [`SegmentRefused`] if there is no such slot, or if the segment does not pass the checks.
    pub fn map(
        &mut self,
        slot: u32,
        capacity: u64,
        passed: &PassedSegment,
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
        // The old segment goes first, because there may be no room for both at once.
        *kept = None;
        *kept = Some(passed.map(capacity)?);
        Ok(())
    }

    /// Returns the bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let segments = self.slots.iter().flatten();
        segments.map(|segment| segment.memory.bytes() as u64).sum()
    }

    /// Empties the slot. A held message in its segment keeps the segment mapped.
    pub fn forget(&mut self, slot: u32) {
        if let Some(kept) = self.slots.get_mut(slot as usize) {
            *kept = None;
        }
    }

    /// Returns the segment of the slot that a message of `length` bytes was announced in. The
    /// reference keeps the segment mapped.
    ///
    /// # Errors
    /// [`SegmentRefused`] if there is no such slot, or if its segment is shorter.
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
    use super::super::aside::tests::open_descriptors_of;
    use super::*;
    use ibex_ring::memory::probe;
    use rustix::fs::ftruncate;
    use rustix::io::Errno;
    use std::sync::atomic::{Ordering::SeqCst, fence};

    impl MessageSlots {
        /// Handles an announcement as a receiver does.
        fn accept(
            &mut self,
            slot: u32,
            length: u64,
            capacity: u64,
            fd: Option<OwnedFd>,
        ) -> Result<Arc<MessageSegment>, SegmentRefused> {
            if let Some(fd) = fd {
                let passed = PassedSegment::Fd(PassedFd::new(fd));
                self.map(slot, capacity, &passed)?;
            }
            self.of_message(slot, length)
        }
    }

    fn first_byte(segment: &MessageSegment) -> u8 {
        // The compiler takes the sender's mapping for different memory.
        fence(SeqCst);
        // SAFETY: the mapping is alive and readable, and no thread writes it now.
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

            let segment = slots.accept(index, 100_000, capacity, fd).unwrap();
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
            slots.accept(index, 1, capacity, slot.announce()).unwrap();
        }
        for index in 0..4 {
            pool.release(index);
        }
        let held = slots.accept(0, 1, 64 << 10, None).unwrap();

        let slot = pool.take(1 << 20).unwrap().unwrap();
        assert_eq!(slot.index(), 0);
        let segment = slots.accept(0, 1 << 20, 1 << 20, slot.announce()).unwrap();
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
        let passed = PassedSegment::Fd(PassedFd::new(fd));
        slots.map(63, 64 << 10, &passed).unwrap();
        assert!(slots.map(64, 64 << 10, &passed).is_err());
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
    fn a_wrong_announcement_of_a_segment_is_refused() {
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
            .accept(0, (64 << 10) + 1, 64 << 10, Some(fd))
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
            let refused = slots.accept(0, 1, capacity, Some(fd)).unwrap_err();
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

    #[test]
    fn a_segment_that_is_mapped_before_its_turn_takes_no_descriptor() {
        let (_sender, fd) = MessageSegment::create(64 << 10).unwrap();
        let file = probe::inode(&fd);
        let passed = PassedSegment::mapped(PassedFd::new(fd), 64 << 10).unwrap();
        assert_eq!(open_descriptors_of(file), 0);
        let mut slots = MessageSlots::new();
        slots.map(0, 64 << 10, &passed).unwrap();
        drop(passed);
        assert_eq!(slots.of_message(0, 64 << 10).unwrap().memory().1, 64 << 10);
    }

    #[test]
    fn nothing_but_a_sealed_memory_file_is_mapped() {
        let path = std::env::temp_dir().join(format!("ibex-segment-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        let file = OwnedFd::from(std::fs::File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let pipe = OwnedFd::from(std::io::pipe().unwrap().0);
        for fd in [file, pipe] {
            let inode = probe::inode(&fd);
            let refused = PassedSegment::mapped(PassedFd::new(fd), 4096).unwrap_err();
            assert!(
                matches!(
                    refused,
                    SegmentRefused::NotAMemoryFile { .. } | SegmentRefused::NotSealed { .. }
                ),
                "{refused}"
            );
            assert_eq!(probe::mappings_of(inode), 0);
        }
    }
}
