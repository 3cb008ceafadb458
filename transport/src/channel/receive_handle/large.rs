//! Large messages of a receiver's handle: where they lie, the segments that they come in, and the
//! charge of a segment against the node's limit.

use ibex_protocol::format::record::LargeAnnouncement;
use ibex_ring::memory::{MemoryClaim, MemoryError};

use super::{Found, FoundLarge, ReceiveHandle, Source};
use crate::{
    endpoint::{
        error::{ChannelError, FailureReason},
        receive_end::{LargeArrival, LargeMemory, LargePlace},
    },
    shared_memory::SegmentRefused,
};

impl ReceiveHandle {
    /// Returns the place and time of an announced message, if all of it has arrived.
    pub(super) fn find_large(
        &mut self,
        found: &Found,
        sequence: u64,
    ) -> Result<Option<FoundLarge>, ChannelError> {
        if matches!(self.source, Source::Ring(_)) {
            if found.length != LargeAnnouncement::MAX_BYTES {
                return Err(self.refused("an announcement of a large message is malformed"));
            }
            // SAFETY: a record's payload of this length is readable. Its bytes are copied once, and
            // the copy is checked.
            let bytes = unsafe { found.payload.cast::<[u8; 16]>().read_unaligned() };
            let (length, slot, is_new) = LargeAnnouncement::parse_in_segment(bytes);
            if !is_new {
                return self.in_segment(slot, length).map(Some);
            }
        }
        if !self.is_first_of_large(sequence) {
            return Ok(None);
        }
        self.map_segment()?;
        // For a message in a segment, `map_segment` has claimed its memory. So a message that is
        // taken out here can be handed out.
        let Some(LargeArrival {
            length,
            time,
            place,
            ..
        }) = self.end.large().pop_front()
        else {
            return Ok(None);
        };
        match place {
            LargePlace::Granted(lease) => Ok(Some((
                lease.base(),
                length,
                LargeMemory::Granted(lease),
                time,
            ))),
            LargePlace::Landed(block) => Ok(Some((
                block.message(),
                length,
                LargeMemory::Landed(block),
                time,
            ))),
            LargePlace::Segment { slot, .. } => self.in_segment(slot, length as u64).map(Some),
        }
    }

    fn is_first_of_large(&self, sequence: u64) -> bool {
        let large = self.end.large();
        large.front().is_some_and(|next| next.sequence == sequence)
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
        let claimed = self.claim_next(capacity).map_err(SegmentRefused::from);
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

    /// Claims room for the next message, in a segment of `capacity`, within the node's limit on
    /// memory that peers make it hold. A claim that has to wait keeps its place before later ones.
    ///
    /// A segment is entirely its sender's memory, which was checked when the segment came. It
    /// counts while a message in it is not released.
    fn claim_next(&mut self, capacity: u64) -> Result<(), MemoryError> {
        let begun = self.claim.take();
        let begun = begun.filter(|claim| claim.total() == capacity);
        if begun.as_ref().is_some_and(MemoryClaim::is_whole) {
            self.claim = begun;
            return Ok(());
        }
        let node = &self.end.session.node;
        let claim = match begun {
            None => node.memory.claim(capacity),
            Some(_) => None,
        };
        let (claim, has_room) = match (claim, begun) {
            (Some(claim), _) => (claim, true),
            (None, begun) => {
                let mut claim = begun.unwrap_or_else(|| node.memory.begin(capacity));
                let has_room = node.charge(&mut claim, capacity);
                if has_room {
                    claim.finish(capacity);
                }
                (claim, has_room)
            }
        };
        self.claim = Some(claim);
        match has_room {
            true => Ok(()),
            false => Err(MemoryError::beyond_limit(capacity as usize)),
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
                let (payload, capacity) = segment.memory();
                self.claim_next(capacity as u64)
                    .map_err(|error| self.end.failed(FailureReason::Memory(error)))?;
                let memory = LargeMemory::Segment(segment, self.claim.take());
                Ok((payload, length as usize, memory, 0))
            }
            Err(refused) => Err(self.refused(&refused.to_string())),
        }
    }
}
