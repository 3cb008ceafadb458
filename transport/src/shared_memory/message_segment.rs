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
//!
//! A *region* of the program may take a slot too. It serves any number of channels, and several
//! messages at a time, each a part of it. Nobody writes to it while one of them is not released: each
//! has a slice of the region, which the engine keeps (`connection/passed_slices.rs`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use ibex_ring::memory::{
    Access, Mapping, MemoryClaim, MemoryError, MemoryUse, RegionFile, RegionSlice, class_bytes,
    create_memfd, share_region,
};

use super::aside::PassedFd;
use super::sealed::{self, SegmentRefused};

/// Most slots of one channel, that is, most unreleased messages that are longer than its ring. The
/// channel bounds their total bytes.
pub const MESSAGE_SLOTS: usize = 64;

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
        let (what, capacity) = (MemoryUse::LargeMessage, class_bytes(bytes)?);
        let fd = create_memfd(what, capacity)?;
        let memory = Mapping::of_file(what, fd.as_fd(), capacity, Access::ReadWrite)?;
        sealed::seal(&fd, what, capacity)?;
        Ok((Self { memory }, fd))
    }

    /// Returns the program's region that a slice is a part of as the sender's side of a segment, and
    /// where the slice begins there; `None` if it has no pages of its own. The region is moved to a
    /// sealed memory file, if it does not lie in one yet.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory, or no descriptor. The region keeps its bytes, and no
    /// peer gets it.
    pub fn of_region(slice: &RegionSlice) -> Result<Option<(Arc<RegionFile>, usize)>, MemoryError> {
        share_region(slice, |fd, bytes| {
            sealed::seal(fd, MemoryUse::LargeMessage, bytes)
        })
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
    slots: Vec<Option<MappedSlot>>,
}

#[derive(Debug)]
struct MappedSlot {
    segment: Arc<MessageSegment>,
    /// The claim to the segment's memory, which the messages in it hold together.
    claim: Weak<MemoryClaim>,
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
                offset: 0,
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
        *kept = Some(MappedSlot {
            segment: passed.map(capacity)?,
            claim: Weak::new(),
        });
        Ok(())
    }

    /// Returns the bytes of all segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let segments = self.slots.iter().flatten();
        let bytes = |slot: &MappedSlot| slot.segment.memory.bytes() as u64;
        segments.map(bytes).sum()
    }

    /// Empties the slot. A held message in its segment keeps the segment mapped.
    pub fn forget(&mut self, slot: u32) {
        if let Some(kept) = self.slots.get_mut(slot as usize) {
            *kept = None;
        }
    }

    /// Returns the segment of the slot that a message of `length` bytes was announced in, from
    /// `offset` on. The reference keeps the segment mapped.
    ///
    /// # Errors
    /// [`SegmentRefused`] if there is no such slot, or if the message ends behind its segment.
    pub fn of_message(
        &self,
        slot: u32,
        offset: u64,
        length: u64,
    ) -> Result<Arc<MessageSegment>, SegmentRefused> {
        let kept = self.slots.get(slot as usize).and_then(Option::as_ref);
        let kept = kept.map(|kept| &kept.segment);
        let capacity = kept.map_or(0, |segment| segment.memory.bytes() as u64);
        let end = offset.checked_add(length);
        kept.filter(|_| end.is_some_and(|end| end <= capacity))
            .cloned()
            .ok_or(SegmentRefused::NoSuchSlot {
                slot,
                offset,
                length,
                capacity,
            })
    }

    /// Returns the claim that messages hold which lie in the slot's present segment and are not released.
    #[must_use]
    pub fn claim_of(&self, slot: u32) -> Option<Arc<MemoryClaim>> {
        self.slots.get(slot as usize)?.as_ref()?.claim.upgrade()
    }

    /// Notes the claim to the slot's segment, which a message in it holds, for other messages there.
    pub fn share_claim(&mut self, slot: u32, claim: &Arc<MemoryClaim>) {
        if let Some(Some(kept)) = self.slots.get_mut(slot as usize) {
            kept.claim = Arc::downgrade(claim);
        }
    }
}

#[cfg(test)]
mod tests;
