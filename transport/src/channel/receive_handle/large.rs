//! Large messages of a receiver's handle: where they lie, the segments that they come in, and the
//! charge of a segment against the node's limit.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ibex_protocol::{
    format::{
        in_segment::InSegment, message_extension::MessageExtension, record::LargeAnnouncement,
    },
    session::Agreed,
};
use ibex_ring::memory::class_bytes;

use super::{FoundLarge, FoundRecord, ReceiveHandle, is_beyond_limit};
use crate::session::{ChannelError, FailureReason};
use crate::{
    channel::{
        message::RawMessage,
        payload::{Payload, copy_shared},
    },
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
        let extension = self.extension_of(&found)?;
        self.last_large = (sequence as u32, u32::try_from(length).unwrap_or(u32::MAX));
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
        let mut message = self.hand_over(payload, found.size, time);
        if let Some(extension) = extension {
            message.keep_extension(extension);
        }
        Ok(Some(message))
    }

    /// Copies the extension of a large message from behind its announcement, so that the message
    /// keeps it when the record is gone, and no process of another user can rewrite it.
    fn extension_of(&self, found: &FoundRecord) -> Result<Option<Box<[u8]>>, ChannelError> {
        if !found.kind.is_extended() {
            return Ok(None);
        }
        let announced = match self.source.ring() {
            Some(_) => announced_in_ring(found).map_or(found.length, |announced| announced.bytes()),
            None => LargeAnnouncement::BYTES,
        };
        const MOST: usize = MessageExtension::MAX_BYTES;
        let mut copy = [0; MOST];
        let length = found.length.saturating_sub(announced);
        let Some(extension) = copy.get_mut(..length).filter(|part| !part.is_empty()) else {
            return Err(self.refused("the extension of a large message is too long, or empty"));
        };
        let to = NonNull::from(&mut *extension).cast();
        // SAFETY: the record's payload can be read and is aligned to 8 bytes, as is the part behind
        // an announcement. The part has `length` bytes, as the copy has, which is this call's alone.
        unsafe {
            let from = found.payload.add(announced);
            copy_shared(from, to, length);
        }
        match self.check_extension(extension)? == length {
            true => Ok(Some((*extension).into())),
            false => Err(self.refused("the extension of a large message is not all of the record")),
        }
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
        let mut offset = 0;
        if self.source.ring().is_some() {
            let Some(announced) = announced_in_ring(found) else {
                return Err(self.refused("an announcement of a large message is malformed"));
            };
            if !announced.is_new {
                return self.in_segment(announced).map(Some);
            }
            offset = announced.offset;
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
            }) => Some(InSegment {
                length: *length as u64,
                slot: *slot,
                is_new: true,
                is_part: false,
                offset,
            }),
            _ => None,
        };
        if let Some(announced) = in_segment {
            let found = self.in_segment(announced)?;
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
        let (slot, length, capacity, passed) = match self.end.large().front_mut() {
            Some(LargeArrival {
                length,
                place:
                    LargePlace::Segment {
                        slot,
                        capacity,
                        passed,
                    },
                ..
            }) => (*slot, *length, *capacity, passed.take()),
            _ => return Ok(()),
        };
        let Some(passed) = passed else {
            return Ok(());
        };
        let agreed = self.end.state.agreed();
        let most = agreed.map_or(0, Agreed::mapped_bytes);
        let charge = self.charge(length, capacity);
        let claimed = self
            .memory_wait
            .claim(charge, &self.end.session.node)
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

    /// Returns the place of a message in a segment that is mapped.
    fn in_segment(&mut self, announced: InSegment) -> Result<FoundLarge, ChannelError> {
        let InSegment {
            length,
            slot,
            offset,
            ..
        } = announced;
        let limit = self
            .end
            .state
            .agreed()
            .map_or(0, |agreed| agreed.max_message_bytes);
        if length > limit {
            return Err(self.refused("a message is above the channel's limit"));
        }
        let segment = self.end.held().slots.of_message(slot, offset, length);
        match segment {
            Ok(segment) => {
                let (base, capacity) = segment.memory();
                let length = length as usize;
                // SAFETY: `of_message` has checked that the message lies in its segment.
                let at = unsafe { base.add(offset as usize) };
                if let Some(region) = self.end.provided.take(length as u64) {
                    // SAFETY: `of_message` has checked that the message lies in its segment, which is
                    // mapped as long as `segment` lives. The region has room for it, and is this
                    // thread's alone.
                    unsafe { copy_shared(at, region.base(), length) };
                    drop(self.memory_wait.take_claim());
                    return Ok((Payload::InRegion(region, length), LargeMemory::Region, 0));
                }
                let copies = self.source.copies();
                let shared = self.end.held().slots.claim_of(slot).filter(|_| !copies);
                if shared.is_none() {
                    let charge = self.charge(length, capacity as u64);
                    self.memory_wait
                        .claim(charge, &self.end.session.node)
                        .map_err(|error| self.end.failed(FailureReason::Memory(error)))?;
                }
                // SAFETY: as above.
                let payload = unsafe { self.payload(at, length)? };
                let claim = self.memory_wait.take_claim();
                if copies {
                    return Ok((payload, LargeMemory::Copied(claim), 0));
                }
                let claim = shared.or_else(|| claim.map(Arc::new));
                if let Some(claim) = &claim {
                    self.end.held().slots.share_claim(slot, claim);
                }
                Ok((payload, LargeMemory::Segment(segment, claim), 0))
            }
            Err(refused) => Err(self.refused(&refused.to_string())),
        }
    }

    /// Returns the bytes that a message in a segment counts as, within the node's limit on memory that
    /// peers make it hold: those of its copy, or the whole segment, which stays mapped however short the
    /// message is. Of a segment above half of the limit, more than that half counts only if the message
    /// itself is longer, so that a short message of a long region leaves room for others.
    fn charge(&self, length: usize, capacity: u64) -> u64 {
        let message = class_bytes(length).map_or(capacity, |bytes| capacity.min(bytes as u64));
        if self.source.copies() {
            return message;
        }
        let limit = self.end.session.node.memory.limit();
        capacity.min(limit / 2).max(message).min(limit)
    }
}

/// Returns whether a large message in shared memory lies in a new segment, which comes over the
/// Unix socket and is not mapped yet. For a malformed announcement this is false.
fn announces_new_segment(found: &FoundRecord) -> bool {
    announced_in_ring(found).is_some_and(|announced| announced.is_new)
}

/// Reads the announcement of a large message in a ring; `None` if the record has not the length of an
/// announcement, or of one with an extension behind it.
fn announced_in_ring(found: &FoundRecord) -> Option<InSegment> {
    if found.length < LargeAnnouncement::BYTES {
        return None;
    }
    let words = found.payload.cast::<AtomicU64>();
    // SAFETY: a record's payload of this length can be read, and is aligned to 8 bytes. Another
    // process may write there, so each word is read by an atomic load, once.
    let word = |at| unsafe { words.add(at).as_ref() }.load(Ordering::Relaxed);
    let mut announced = InSegment::parse([word(0), word(1)]);
    let is_whole = match found.kind.is_extended() {
        true => found.length > announced.bytes(),
        false => found.length == announced.bytes(),
    };
    if !is_whole {
        return None;
    }
    if announced.is_part {
        announced.offset = u64::from_le(word(2));
    }
    Some(announced)
}

#[cfg(test)]
mod tests {
    use ibex_protocol::format::record::RecordKind;

    use super::*;

    #[test]
    fn an_announcement_whose_record_is_cut_or_too_long_is_malformed() {
        let part = LargeAnnouncement::of_part(1000, 7, true, 4096);
        let whole = LargeAnnouncement::in_segment(1000, 7, true);
        for (announcement, offset) in [(part, 4096), (whole, 0)] {
            let mut record = [0_u64; 5];
            for (word, bytes) in record.iter_mut().zip(announcement.bytes().chunks(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().expect("whole words"));
            }
            let mut read = |kind, length| {
                let payload = NonNull::from(&mut record).cast();
                announced_in_ring(&FoundRecord {
                    kind,
                    payload,
                    length,
                    size: length,
                    time: 0,
                })
            };
            let bytes = announcement.bytes().len();
            for length in 0..40 {
                let plain = read(RecordKind::Large, length);
                assert_eq!(plain.is_some(), length == bytes, "{length}");
                let extended = read(RecordKind::ExtendedLarge, length);
                assert_eq!(extended.is_some(), length > bytes, "{length}");
                for announced in plain.into_iter().chain(extended) {
                    let InSegment { length, slot, .. } = announced;
                    assert_eq!((length, slot, announced.offset), (1000, 7, offset));
                }
            }
        }
    }
}
