//! The memory that a sending end's handles write to: its ring, and buffers for messages that are
//! too long for the ring.

use std::{collections::VecDeque, mem::MaybeUninit, slice, sync::Arc};

use ibex_base::sync::Asymmetry;
use ibex_protocol::session::Agreed;
use ibex_ring::{
    Doorbell, Mapped, Misbehaved, Producer, Released, RingMemory,
    end_status::{ReceiverWords, Words},
    memory::{Backing, LargeLease, MemoryError, MirroredMapping, RingLease},
};

use super::{large_waits::LargeWaits, send_end::SendEnd};
use crate::session::Full;
use crate::shared_memory::{MessageSegmentPool, PassedSlice, RegionSlot, RingSegment};
use crate::wire::MessageBytes;

/// The ring and the state needed to write it.
#[derive(Debug)]
pub(crate) struct SendProducer {
    pub(crate) ring: Producer<Mapped>,
    pub(crate) doorbell: Doorbell,
    pub(crate) asymmetry: Asymmetry,
    pub(crate) theirs: Words<ReceiverWords>,
    /// The owner that keeps the ring mapped.
    memory: RingOwner,
    /// The part of the ring that has memory.
    backing: Backing,
    /// Room that earlier messages needed; encoding is not tried with less.
    pub(crate) typical: usize,
    pub(crate) largest: usize,
    pub(crate) max_message_bytes: u64,
    max_unreleased_bytes: u64,
    /// Bytes published since the last turn that the sender ran (`Driver::Caller`).
    pub(crate) untransmitted: usize,
    pub(crate) transmit_at: usize,
    /// The number of those bytes from which on there is more to do behind a message: `transmit_at`,
    /// or 0 if times of messages are kept.
    pub(crate) claim_at: usize,
    /// Large messages whose memory is in use, with their slots in shared memory.
    pub(crate) large: VecDeque<(u64, u32)>,
    pub(crate) segments: MessageSegmentPool,
    /// Messages with memory of their own that are not known to be released.
    pub(crate) out: OutsideRing,
    /// The place where a reservation, or a group's message, is built if it is too long for the
    /// ring.
    pub(crate) reserved_large: Option<SendPlace>,
}

/// The memory of a ring.
#[derive(Debug)]
pub(super) enum RingOwner {
    Lease(Arc<RingLease>),
    Segment(RingSegment),
}

impl RingOwner {
    fn mapping(&self) -> &MirroredMapping {
        match self {
            Self::Lease(lease) => lease.memory(),
            Self::Segment(segment) => segment.mapping(),
        }
    }
}

/// Memory of its own for a large message.
#[derive(Debug)]
pub(crate) enum SendPlace {
    /// Memory of this process, which the engine sends in chunks.
    Lease(LargeLease),
    /// A slot of the channel's message segments, which the peer maps.
    Slot(u32),
}

/// The place of a large message in memory of the program's.
#[derive(Debug)]
pub(crate) enum SlicePlace {
    /// The engine sends it from there.
    Sent(MessageBytes),
    /// The peer maps its region.
    Mapped {
        slot: RegionSlot,
        /// Where the message begins in the region.
        offset: usize,
        slice: PassedSlice,
    },
}

impl SendPlace {
    pub(crate) fn bytes<'p>(
        &'p mut self,
        segments: &'p mut MessageSegmentPool,
    ) -> &'p mut [MaybeUninit<u8>] {
        match self {
            // SAFETY: this is the lease's memory, and no other thread has it before the lease goes
            // to the engine with the message.
            SendPlace::Lease(lease) => unsafe {
                slice::from_raw_parts_mut(lease.base().cast().as_ptr(), lease.capacity())
            },
            SendPlace::Slot(slot) => segments.slot(*slot).into_bytes(),
        }
    }

    /// Returns the place's bytes for reading.
    fn written<'p>(&'p self, segments: &'p MessageSegmentPool) -> &'p [MaybeUninit<u8>] {
        match self {
            // SAFETY: as in `bytes`; while this value is borrowed, it is only read.
            SendPlace::Lease(lease) => unsafe {
                slice::from_raw_parts(lease.base().cast().as_ptr(), lease.capacity())
            },
            SendPlace::Slot(slot) => segments.written(*slot),
        }
    }
}

impl SendProducer {
    /// Makes the ring of an open channel and announces it to the engine. The ring continues at the
    /// position `before` of an earlier ring, if there was one.
    pub(crate) fn create(
        end: &Arc<SendEnd>,
        before: Option<Released>,
    ) -> Result<Self, MemoryError> {
        let (Some(agreed), Some(theirs)) = (end.state.agreed(), end.theirs.get()) else {
            unreachable!("an open end has an agreement and a counterpart")
        };
        let capacity = agreed.window.bytes as usize;
        let (memory, layout, fd) =
            end.path
                .ring_memory(end, capacity, agreed.alignment as usize)?;
        let from = before.map_or(layout.first_position(), |before| before.position);
        let backing = Backing::begin(memory.mapping(), from)?;
        if let Some(fd) = fd {
            end.session.requests.pass_ring(end.id, capacity, fd);
        }
        // SAFETY: both kinds of rings are double mappings of `capacity` bytes that this end writes;
        // `memory` keeps them mapped as long as the producer lives.
        let mapped = unsafe { Mapped::new(memory.mapping().base(), capacity) };
        let window = agreed.window.messages;
        let mut ring = match before {
            None => Producer::new(mapped, layout, window),
            Some(before) => Producer::resume(mapped, layout, window, before),
        };
        ring.back_until(backing.until());
        if let RingOwner::Lease(lease) = &memory {
            let from = ring.released();
            end.session
                .requests
                .attach_ring(end.id, lease.clone(), layout, from);
        }
        let transmit_at = end.session.transmit_at(capacity);
        let largest = end.path.longest_record(end, &ring);
        Ok(Self {
            ring,
            doorbell: Doorbell::new(),
            asymmetry: end.session.asymmetry(),
            theirs: theirs.clone(),
            memory,
            backing,
            typical: 0,
            largest,
            max_message_bytes: agreed.max_message_bytes,
            max_unreleased_bytes: agreed.max_unreleased_bytes,
            untransmitted: 0,
            transmit_at,
            claim_at: match end.times {
                Some(_) => 0,
                None => transmit_at,
            },
            large: Default::default(),
            segments: MessageSegmentPool::new(),
            out: OutsideRing::new(agreed),
            reserved_large: None,
        })
    }

    /// Gets memory for the part of the ring that a payload of `length` bytes will take, if the ring
    /// holds such a payload. Whether the receiver has released that part is another question.
    pub(crate) fn back(&mut self, length: usize) -> Result<(), MemoryError> {
        let end = self.ring.end_of(length.min(self.largest));
        if end > self.backing.until() {
            self.backing.reach(self.memory.mapping(), end)?;
            self.ring.back_until(self.backing.until());
        }
        Ok(())
    }

    /// Reads how much the receiver has released, and checks its numbers before using them.
    #[inline]
    pub(crate) fn refresh(&mut self) -> Result<(), Misbehaved> {
        let (messages, position) = self.theirs.released();
        if messages == 0 {
            // The receiver wrote this position before the ends agreed on a version, which
            // determines where the ring begins.
            return Ok(());
        }
        self.ring.refresh(Released { messages, position })?;
        self.out.retire(messages);
        Ok(())
    }

    /// Returns the bytes of the current reservation, for writing. Until written, they hold bytes of
    /// earlier messages.
    #[inline(always)]
    pub(crate) fn reserved_mut(&mut self, length: usize) -> &mut [u8] {
        let slot = match &mut self.reserved_large {
            None => self.ring.slot(),
            Some(place) => place.bytes(&mut self.segments),
        };
        let slot = &mut slot[..length];
        // SAFETY: ring and message memory comes from the kernel, zeroed, and only ever
        // gets bytes written, so it is initialised; `u8` and `MaybeUninit<u8>` have the
        // same layout.
        unsafe { &mut *(std::ptr::from_mut(slot) as *mut [u8]) }
    }

    /// Returns the reserved bytes for reading.
    pub(crate) fn reserved(&self, length: usize) -> &[u8] {
        let written = self.written(length);
        // SAFETY: as in `reserved_mut`.
        unsafe { &*(std::ptr::from_ref(written) as *const [u8]) }
    }

    /// Returns the bytes that a group's message is encoded or copied to, at least as many as were
    /// reserved for it.
    #[inline]
    pub(crate) fn place_slot(&mut self) -> &mut [MaybeUninit<u8>] {
        match &mut self.reserved_large {
            None => up_to(self.largest, self.ring.slot()),
            Some(place) => place.bytes(&mut self.segments),
        }
    }

    /// Returns the bytes of a group's message that were written.
    #[inline]
    pub(crate) fn written(&self, length: usize) -> &[MaybeUninit<u8>] {
        match &self.reserved_large {
            None => self.ring.written(length),
            Some(place) => &place.written(&self.segments)[..length],
        }
    }

    /// Returns whether separate memory for a message of `length` bytes is already reserved.
    pub(crate) fn has_place(&self, length: usize) -> bool {
        let place = self.reserved_large.as_ref();
        place.is_some_and(|place| place.written(&self.segments).len() >= length)
    }

    /// Returns whether the ring has room for a payload of `length` bytes now.
    #[inline]
    pub(crate) fn takes(&self, length: usize) -> bool {
        length <= self.largest && self.ring.fits(length)
    }

    /// Returns the bytes that the next payload is encoded to, at most what the fabric carries in
    /// one record.
    #[inline]
    pub(crate) fn slot(&mut self) -> &mut [MaybeUninit<u8>] {
        up_to(self.largest, self.ring.slot())
    }

    /// Returns whether a message of `length` bytes with memory of its own may be sent. One such
    /// message may always be unreleased, however long it is.
    pub(crate) fn admits(&self, length: usize) -> bool {
        self.out.bytes == 0 || self.out.with(length as u64) <= self.out.most
    }

    /// Counts a message that is about to be announced. Returns whether more than half of the
    /// allowed bytes are now unreleased.
    pub(crate) fn goes_out(&mut self, sequence: u64, length: usize) -> bool {
        self.out.messages.push_back((sequence, length as u64));
        self.out.bytes += length as u64;
        2 * self.out.bytes > self.out.most
    }

    /// Returns the limit of the ring that keeps a message from being sent.
    pub(crate) fn full_window(&self) -> Full {
        match () {
            () if self.ring.is_out_of_messages() => Full::Messages,
            // Doubling the window would exceed the total that may be unreleased.
            () if self.max_unreleased_bytes < 2 * self.ring.memory().capacity() as u64 => {
                Full::WindowOfAll
            }
            () => Full::Window,
        }
    }

    /// Returns whether, as far as is known, no message is unreleased and none is being built.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.ring.is_drained() && self.large.is_empty() && self.reserved_large.is_none()
    }

    /// Forgets the oldest large message, unless it came after message `done`. Returns its slot.
    pub(super) fn pop_large(&mut self, done: u64) -> Option<u32> {
        let &(sequence, slot) = self.large.front()?;
        if sequence > done {
            return None;
        }
        self.large.pop_front();
        Some(slot)
    }
}

/// Messages with memory of their own that are not known to be released.
#[derive(Debug)]
pub(crate) struct OutsideRing {
    /// Sequences and lengths of the messages.
    messages: VecDeque<(u64, u64)>,
    bytes: u64,
    most: u64,
    most_in_regions: u64,
    pub(crate) waits: LargeWaits,
    /// The message up to which the sender goes on though the receiver does not keep up.
    pub(crate) hurries_until: u64,
}

impl OutsideRing {
    fn new(agreed: &Agreed) -> Self {
        Self {
            messages: VecDeque::new(),
            bytes: 0,
            most: agreed.large_bytes(),
            most_in_regions: agreed.region_bytes(),
            waits: LargeWaits::default(),
            hurries_until: 0,
        }
    }

    /// Returns how many bytes are under way with so many more.
    pub(crate) fn with(&self, bytes: u64) -> u64 {
        self.bytes + bytes
    }

    /// Forgets the messages up to `released`, which the receiver has released.
    #[inline]
    fn retire(&mut self, released: u64) {
        while let Some(&(sequence, bytes)) = self.messages.front()
            && sequence <= released
        {
            self.bytes -= bytes;
            self.messages.pop_front();
        }
    }

    /// Returns the most bytes that all message segments may have: the bytes that may be unreleased,
    /// plus what rounding the segments' lengths adds.
    pub(crate) fn most_in_segments(&self) -> usize {
        usize::try_from(self.most / 2 * 3).unwrap_or(usize::MAX)
    }

    /// Returns the most bytes that the program's regions may have that the peer maps.
    pub(crate) fn most_in_regions(&self) -> usize {
        usize::try_from(self.most_in_regions).unwrap_or(usize::MAX)
    }
}

#[inline]
fn up_to(largest: usize, slot: &mut [MaybeUninit<u8>]) -> &mut [MaybeUninit<u8>] {
    let room = slot.len().min(largest);
    &mut slot[..room]
}
