//! The segments of a channel's sender, in numbered slots that serve again: its own, and regions of the
//! program.

use std::{
    mem::MaybeUninit,
    os::fd::OwnedFd,
    slice,
    sync::{Arc, Weak},
};

use ibex_ring::memory::{MemoryError, RegionFile};

use super::message_segment::{MESSAGE_SLOTS, MessageSegment};

/// Slots that short messages use in rotation, so that writer and reader of 1 MiB messages need not
/// alternate (21 GB/s with two slots, 50 with four, without a library). More where several messages
/// are under way, since memory that was only just read is slow to write: with four of 1 MiB under way
/// 10 GB/s in four slots, and 17 in eight.
pub(super) const ROUND_SLOTS: usize = 4;

/// More than `ROUND_SLOTS` have no more bytes than this together, which stay in a cache that both
/// ends share.
const ROUND_BYTES: usize = 8 << 20;

/// Once in so many released messages, a region may take the place of others. To pass a region
/// to the receiver takes several times as long as to copy a message of 1 to 15 MiB, so messages from more
/// regions than there is room for are copied in between (128 regions of 1 MiB in turn: 771 µs for a call
/// where each is passed anew, 156 where all are copied).
pub(super) const DISPLACED_EVERY: u64 = 64;

/// Messages up to this length are short.
const SHORT_MESSAGE_BYTES: usize = 4 << 20;

/// The sender's slots of one channel.
#[derive(Debug, Default)]
pub struct MessageSegmentPool {
    /// Slots; their number is the most that were in use at a time.
    slots: Vec<Slot>,
    releases: u64,
    /// Time from which on a region may take the place of memory that may serve again.
    displaces_from: u64,
}

#[derive(Debug, Default)]
struct Slot {
    memory: SlotMemory,
    /// The segment's descriptor until a message is announced with it.
    unsent: Option<OwnedFd>,
    /// Messages that are not released: at most one, but in a region.
    busy: u32,
    /// Time of the last release, counted in releases of the pool.
    released: u64,
}

/// The memory of a slot.
#[derive(Debug, Default)]
enum SlotMemory {
    #[default]
    None,
    /// The pool's own, in which messages are encoded.
    Own(MessageSegment),
    /// A region of the program, which is dropped when the program pleases.
    Region(Weak<RegionFile>, usize),
}

impl MessageSegmentPool {
    /// Makes a pool without segments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a free slot with room for `bytes`, or `None` while every slot holds an unreleased
    /// message or a region, for which [`make_room`](Self::make_room) makes room. Maps and zeroes memory
    /// if no free slot is long enough, so it must be called outside turns.
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
            .own()
            .is_some_and(|segment| segment.memory().1 >= bytes);
        if !fits {
            // The old segment goes first, because there may be no room for both at once.
            *slot = Slot::default();
            let (segment, fd) = MessageSegment::create(bytes)?;
            slot.memory = SlotMemory::Own(segment);
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
            slot.own().is_some() && slot.busy == 0,
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
        let segment = slot.own().filter(|_| slot.busy == 0);
        let (base, length) = segment.expect("the slot was taken").memory();
        // SAFETY: as in `MessageSlot::into_bytes`; `&self` excludes writers.
        unsafe { slice::from_raw_parts(base.cast().as_ptr(), length) }
    }

    /// Takes a slot for another message in a region of the program, whose pages are those of `file`.
    /// The slot is busy from now on. `None` if the receiver does not have the region, and the pool
    /// does not [admit](Self::admits_region) one of its length; then no slot was emptied.
    pub fn take_region(&mut self, file: &Arc<RegionFile>, most: usize) -> Option<RegionSlot> {
        let is_same = |slot: &Slot| match &slot.memory {
            SlotMemory::Region(region, _) => region.as_ptr() == Arc::as_ptr(file),
            _ => false,
        };
        if let Some(index) = self.slots.iter().position(is_same) {
            self.slots[index].busy += 1;
            return Some(RegionSlot {
                index: index as u32,
                is_new: false,
                emptied: 0,
            });
        }
        let bytes = file.bytes();
        // A slot that is emptied in vain would be one that the receiver is never told to forget.
        if !self.admits_region(bytes, most) {
            return None;
        }
        let may_displace = self.may_displace();
        let mut emptied = 0;
        while bytes > most.saturating_sub(self.region_bytes(|_| true)) {
            let index = self.place_of_region(may_displace, Slot::is_region)?;
            self.empty(index);
            emptied |= 1 << index;
        }
        let index = self.place_of_region(may_displace, |_| true)?;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        self.empty(index);
        let slot = &mut self.slots[index];
        slot.memory = SlotMemory::Region(Arc::downgrade(file), bytes);
        slot.busy = 1;
        Some(RegionSlot {
            index: index as u32,
            is_new: true,
            emptied: emptied & !(1 << index),
        })
    }

    /// Returns whether [`take_region`](Self::take_region) has a slot for a region of so many bytes
    /// that the receiver does not have. Regions have at most `most` bytes in all slots together.
    /// Regions without messages make room: those that the program has dropped always, and others, or
    /// the pool's own segments, once in `DISPLACED_EVERY` releases.
    #[must_use]
    pub fn admits_region(&self, bytes: usize, most: usize) -> bool {
        let may_displace = self.may_displace();
        let stays = self.region_bytes(|slot| !slot.gives_way(may_displace));
        bytes <= most.saturating_sub(stays)
            && self.place_of_region(may_displace, |_| true).is_some()
    }

    fn may_displace(&self) -> bool {
        self.releases >= self.displaces_from
    }

    /// Returns the slot among `these` that a region gets, or whose region gives way to a copy, if one
    /// may be had: an empty one, else one that no message or region was in yet, else that of a region
    /// that is dropped, else the one whose last message was released first. The first slots are for
    /// messages in rotation.
    fn place_of_region(&self, may_displace: bool, these: impl Fn(&Slot) -> bool) -> Option<usize> {
        let none = Slot::default();
        let end = (self.slots.len().max(ROUND_SLOTS) + 1).min(MESSAGE_SLOTS);
        let slot = |index: usize| self.slots.get(index).unwrap_or(&none);
        (ROUND_SLOTS..end)
            .filter(|&index| slot(index).gives_way(may_displace) && these(slot(index)))
            .min_by_key(|&index| (slot(index).may_serve(), slot(index).released))
    }

    /// Empties a slot that gives way to a region.
    fn empty(&mut self, index: usize) {
        if self.slots[index].may_serve() {
            self.displaces_from = self.releases + DISPLACED_EVERY;
        }
        self.slots[index] = Slot::default();
    }

    /// Returns the bytes of the regions in `these` slots.
    fn region_bytes(&self, these: impl Fn(&Slot) -> bool) -> usize {
        let bytes = |slot: &Slot| match slot.memory {
            SlotMemory::Region(_, bytes) => bytes,
            _ => 0,
        };
        let slots = self.slots.iter().filter(|slot| these(slot));
        slots.map(bytes).sum()
    }

    /// Notes that the receiver has released the message in this slot (rule 2). Returns whether the
    /// slot held an unreleased message.
    pub fn release(&mut self, index: u32) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        self.releases += 1;
        slot.released = self.releases;
        let was_busy = slot.busy > 0;
        slot.busy = slot.busy.saturating_sub(1);
        was_busy
    }

    /// Frees the segments that no message lies in.
    ///
    /// The receiver learns of it when the slot gets a new segment. Until then the receiver's
    /// mapping keeps the memory, so this is for the end of a channel.
    pub fn trim(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.busy == 0) {
            *slot = Slot::default();
        }
    }

    /// Returns the number of slots with a message that has not been released.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.slots.iter().filter(|slot| slot.busy > 0).count()
    }

    /// Returns the free slot that fits most closely; otherwise an empty slot; otherwise the
    /// shortest, to be replaced.
    ///
    /// Short messages rotate through the first slots: memory that neither CPU has in its own cache
    /// is faster to write than memory that one of them still shares.
    fn best_free_slot(&self, bytes: usize) -> Option<usize> {
        let none = Slot::default();
        let slot = |index: usize| self.slots.get(index).unwrap_or(&none);
        let most = (ROUND_BYTES / bytes.max(1)).clamp(ROUND_SLOTS, MESSAGE_SLOTS);
        let round = (2 * (self.busy() + 1)).clamp(ROUND_SLOTS, most);
        let rank = |&index: &usize| {
            let (slot, is_of_round) = (slot(index), index < round);
            let length = slot.bytes();
            let is_unused = length == 0 || slot.unsent.is_some();
            let is_new = is_unused && is_of_round && bytes <= SHORT_MESSAGE_BYTES;
            // A message that finds the first slots taken gets the lowest of the others, so that memory
            // that is seldom needed stays out of the caches.
            let turn = if is_of_round {
                slot.released
            } else {
                index as u64
            };
            (!is_new, length < bytes, length, !is_of_round, turn)
        };
        // An unused slot is taken if no other is free, or in rotation.
        let known = self.slots.len().max(round);
        let is_free = |&index: &usize| slot(index).busy == 0 && !slot(index).is_region();
        (0..known)
            .filter(is_free)
            .min_by_key(rank)
            .or_else(|| (known < MESSAGE_SLOTS).then_some(known))
            .map(|index| index.min(self.slots.len()))
    }

    /// Empties free slots until all segments together, with one of `more` bytes, have at most
    /// `most` bytes, and until one slot can be taken, if only regions without messages are left. Empties
    /// none if a slot has room for a message of `bytes`. Returns the emptied slots as a set of bits,
    /// which the receiver is to [forget](super::MessageSlots::forget).
    pub fn make_room(&mut self, bytes: usize, more: usize, most: usize) -> u64 {
        let fits = |slot: &Slot| slot.busy == 0 && slot.bytes() >= bytes;
        if self.slots.iter().any(fits) {
            return 0;
        }
        let mut total: usize = self.slots.iter().map(Slot::bytes).sum();
        let mut emptied = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if total.saturating_add(more) <= most {
                break;
            }
            if slot.busy == 0 && slot.bytes() > 0 {
                total -= slot.bytes();
                *slot = Slot::default();
                emptied |= 1 << index;
            }
        }
        if self.best_free_slot(bytes).is_none()
            && let Some(index) = self.place_of_region(true, Slot::is_region)
        {
            self.slots[index] = Slot::default();
            emptied |= 1 << index;
        }
        emptied
    }
}

impl Slot {
    /// Returns the pool's own segment, if there is one.
    fn own(&self) -> Option<&MessageSegment> {
        match &self.memory {
            SlotMemory::Own(segment) => Some(segment),
            SlotMemory::None | SlotMemory::Region(..) => None,
        }
    }

    /// Returns whether the slot has a region of the program.
    fn is_region(&self) -> bool {
        matches!(self.memory, SlotMemory::Region(..))
    }

    /// Returns whether the slot has memory that may serve again: it is empty otherwise, or has a region
    /// that the program has dropped.
    fn may_serve(&self) -> bool {
        match &self.memory {
            SlotMemory::None => false,
            SlotMemory::Own(_) => true,
            SlotMemory::Region(file, _) => file.strong_count() > 0,
        }
    }

    /// Returns whether the slot may be emptied for a region that the receiver does not have.
    fn gives_way(&self, may_displace: bool) -> bool {
        self.busy == 0 && (may_displace || !self.may_serve())
    }

    /// Returns the length of the pool's own segment.
    fn bytes(&self) -> usize {
        self.own().map_or(0, |segment| segment.memory().1)
    }
}

/// A slot with a message in a region of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSlot {
    /// The slot's number, to be announced.
    pub index: u32,
    /// The receiver does not have the region in this slot: its descriptor has to be passed.
    pub is_new: bool,
    /// Slots that were emptied for it, as a set of bits, which the receiver is to
    /// [forget](super::MessageSlots::forget).
    pub emptied: u64,
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
        self.segment().memory().1
    }

    /// Marks the message as complete: the slot is busy until it is released. Returns the descriptor
    /// to pass if the receiver does not have the segment yet.
    #[must_use = "a new segment's descriptor has to be passed to the receiver"]
    pub fn announce(self) -> Option<OwnedFd> {
        self.slot.busy = 1;
        self.slot.unsent.take()
    }

    fn segment(&self) -> &MessageSegment {
        self.slot
            .own()
            .expect("`take` filled the slot, and this value borrows it")
    }
}
