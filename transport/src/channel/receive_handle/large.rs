//! Large messages of a receiver's handle: where they lie, the segments that they come in, and the
//! charge of a segment against the node's limit.

use std::sync::atomic::{AtomicU64, Ordering};

use ibex_protocol::format::record::LargeAnnouncement;

use super::{FoundLarge, FoundRecord, ReceiveHandle, is_beyond_limit};
use crate::session::{ChannelError, FailureReason};
use crate::{
    channel::message::{Payload, RawMessage, copy_shared},
    endpoint::receive_end::{HeldLarge, LargeArrival, LargeMemory, LargePlace},
    shared_memory::SegmentRefused,
    wire::ArrivalMemory,
};

impl ReceiveHandle {
    /// Hands a large message out once all of it has arrived.
    pub(super) fn poll_large(
        &mut self,
        found: FoundRecord,
        over: bool,
    ) -> Result<Option<RawMessage>, ChannelError> {
        if over {
            // What is released by now counts, since no engine may try again for the handle.
            self.end.advance(false);
        }
        let sequence = self.handed_out + 1;
        let Some((payload, memory, time)) = self.find_large(&found, sequence)? else {
            return if over {
                Err(self.end.error())
            } else {
                Ok(None)
            };
        };
        let length = payload.length();
        self.check_trace(found.kind, length)?;
        self.end.large_messages.add(1);
        self.end.large_bytes.add(length as u64);
        self.end.held().large.push_back(HeldLarge {
            sequence,
            length,
            memory,
        });
        // Handing this message out also gives back the released memory of earlier large messages.
        // Their sender waits for it; or the pool would get memory for the next from the kernel.
        self.advance_at_bytes = 0;
        Ok(Some(self.hand_over(found.kind, payload, found.size, time)))
    }

    /// Returns whether all of a message has arrived.
    pub(super) fn is_whole(&self, found: &FoundRecord, sequence: u64) -> bool {
        let in_ring = self.source.ring().is_some();
        if !found.kind.is_large() || in_ring && !announces_new_segment(found) {
            return true;
        }
        self.end.is_first_of_large(sequence)
    }

    /// Returns whether the memory that was lacking is available now, or a call would say again that
    /// it is lacking.
    pub(super) fn has_memory_now(&mut self) -> bool {
        if self.memory_wait.is_too_soon(&self.end) {
            return false;
        }
        let outcome = self.take_source().and_then(|()| self.map_segment());
        if let Some(lacks_room) = is_beyond_limit(&outcome) {
            return self.memory_wait.begin(&self.end, lacks_room);
        }
        self.memory_wait.end();
        self.end.lacks_room.store(false, Ordering::Relaxed);
        true
    }

    /// Returns the place and time of an announced message, if all of it has arrived.
    pub(super) fn find_large(
        &mut self,
        found: &FoundRecord,
        sequence: u64,
    ) -> Result<Option<FoundLarge>, ChannelError> {
        if self.source.ring().is_some() {
            if found.length != LargeAnnouncement::MAX_BYTES {
                return Err(self.refused("an announcement of a large message is malformed"));
            }
            let (length, slot, is_new) = announced_in_ring(found);
            if !is_new {
                return self.in_segment(slot, length).map(Some);
            }
        }
        if !self.end.is_first_of_large(sequence) {
            return Ok(None);
        }
        self.map_segment()?;
        let in_segment = match self.end.large().front() {
            Some(LargeArrival {
                length,
                place: LargePlace::Segment { slot, .. },
                ..
            }) => Some((*slot, *length as u64)),
            _ => None,
        };
        if let Some((slot, length)) = in_segment {
            let found = self.in_segment(slot, length)?;
            self.end.large().pop_front();
            return Ok(Some(found));
        }
        let Some(arrival) = self.end.large().pop_front() else {
            return Ok(None);
        };
        let (at, memory) = match arrival.place {
            LargePlace::Granted(ArrivalMemory::Region(region)) => {
                let payload = Payload::InRegion(region, arrival.length);
                return Ok(Some((payload, LargeMemory::Region, arrival.time)));
            }
            LargePlace::Granted(ArrivalMemory::Lease(lease)) => {
                (lease.base(), LargeMemory::Granted(lease))
            }
            LargePlace::Landed(block) => (block.message(), LargeMemory::Landed(block)),
            LargePlace::Segment { .. } => unreachable!("it was looked at above"),
        };
        let payload = Payload::InPlace(at, arrival.length);
        Ok(Some((payload, memory, arrival.time)))
    }

    /// Maps the segment of the next large message, if the message came with one. If memory for the
    /// segment is lacking, it stays with the message.
    pub(super) fn map_segment(&mut self) -> Result<(), ChannelError> {
        // Only this handle takes messages out, and no message is put in before the front. So the
        // front stays the same message.
        let (slot, capacity, passed) = match self.end.large().front_mut() {
            Some(LargeArrival {
                place:
                    LargePlace::Segment {
                        slot,
                        capacity,
                        passed,
                    },
                ..
            }) => (*slot, *capacity, passed.take()),
            _ => return Ok(()),
        };
        let Some(passed) = passed else {
            return Ok(());
        };
        let agreed = self.end.state.agreed();
        let most = agreed.map_or(0, |agreed| agreed.large_bytes().saturating_mul(4));
        let claimed = self
            .memory_wait
            .claim(capacity, &self.end.session.node)
            .map_err(SegmentRefused::from);
        let mapped = claimed.and_then(|()| {
            let slots = &mut self.end.held().slots;
            // The slot's former segment is unmapped first, because both together may exceed the
            // limit.
            slots.forget(slot);
            if slots.bytes() + capacity > most {
                return Err(SegmentRefused::Impossible {
                    announced: capacity,
                });
            }
            slots.map(slot, capacity, &passed)
        });
        match mapped {
            Ok(()) => Ok(()),
            Err(SegmentRefused::Memory(error)) => {
                if let Some(LargeArrival {
                    place: LargePlace::Segment { passed: kept, .. },
                    ..
                }) = self.end.large().front_mut()
                {
                    *kept = Some(passed);
                }
                Err(self.end.failed(FailureReason::Memory(error)))
            }
            Err(refused) => Err(self.refused(&refused.to_string())),
        }
    }

    fn in_segment(&mut self, slot: u32, length: u64) -> Result<FoundLarge, ChannelError> {
        let limit = self
            .end
            .state
            .agreed()
            .map_or(0, |agreed| agreed.max_message_bytes);
        if length > limit {
            return Err(self.refused("a message is above the channel's limit"));
        }
        let segment = self.end.held().slots.of_message(slot, length);
        match segment {
            Ok(segment) => {
                let (at, capacity) = segment.memory();
                self.memory_wait
                    .claim(capacity as u64, &self.end.session.node)
                    .map_err(|error| self.end.failed(FailureReason::Memory(error)))?;
                let length = length as usize;
                let payload = match self.end.provided.take(length as u64) {
                    Some(region) => {
                        // SAFETY: `of_message` has checked that the message lies in its segment,
                        // which begins at a page and is mapped as long as `segment` lives. The region
                        // has room for it, and is this thread's alone.
                        unsafe { copy_shared(at, region.base(), length) };
                        Payload::InRegion(region, length)
                    }
                    // SAFETY: as above.
                    None => unsafe { self.payload(at, length)? },
                };
                let memory = LargeMemory::Segment(segment, self.memory_wait.take_claim());
                Ok((payload, memory, 0))
            }
            Err(refused) => Err(self.refused(&refused.to_string())),
        }
    }
}

/// Returns whether a large message in shared memory lies in a new segment, which comes over the
/// Unix socket and is not mapped yet. For a malformed announcement this is false.
fn announces_new_segment(found: &FoundRecord) -> bool {
    found.length == LargeAnnouncement::MAX_BYTES && announced_in_ring(found).2
}

/// Reads the announcement of a large message in a ring: the message's length, the slot of its
/// segment, and whether that is a new one.
///
/// # Panics
///
/// If the record is of another length.
fn announced_in_ring(found: &FoundRecord) -> (u64, u32, bool) {
    assert_eq!(found.length, LargeAnnouncement::MAX_BYTES);
    let words = found.payload.cast::<[AtomicU64; 2]>();
    // SAFETY: a record's payload of this length can be read, and is aligned to 8 bytes. Another
    // process may write there, so it is read by atomic loads, once.
    let [first, second] = unsafe { words.as_ref() };
    let words = [first, second].map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    let mut bytes = [0; LargeAnnouncement::MAX_BYTES];
    bytes[..8].copy_from_slice(&words[0]);
    bytes[8..].copy_from_slice(&words[1]);
    LargeAnnouncement::parse_in_segment(bytes)
}
