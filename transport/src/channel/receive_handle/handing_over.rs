//! Handing out of a message that was found: in place, in the program's region, or as a copy where a
//! process of another user could rewrite it.

use std::ptr::NonNull;

use ibex_ring::memory::{MemoryError, MemoryUse};
use rustix::io::Errno;

use super::ReceiveHandle;
use crate::{
    channel::{
        message::RawMessage,
        payload::{Payload, PayloadCopy},
    },
    session::{ChannelError, FailureReason},
};

impl ReceiveHandle {
    /// Hands out the message whose record is at the front, and moves past that record.
    pub(super) fn hand_over(&mut self, payload: Payload, size: usize, time: u64) -> RawMessage {
        self.source.pass(size);
        match payload {
            Payload::InPlace(payload, length) => self.hand_out(payload, length, size, time),
            Payload::Copied(copy) => {
                let (sequence, units) = self.hold(size);
                RawMessage::of_copy(copy, self.cells, sequence, units, time)
            }
            Payload::InRegion(region, length) => {
                let (sequence, units) = self.hold(size);
                let region = region.arrived();
                RawMessage::in_region(region, length, self.cells, sequence, units, time)
            }
        }
    }

    /// Returns the payload that lies at this address, copied if a process of another user could
    /// rewrite it.
    ///
    /// # Safety
    ///
    /// The bytes are those of a record, or of a large message in a segment.
    pub(super) unsafe fn payload(
        &self,
        at: NonNull<u8>,
        length: usize,
    ) -> Result<Payload, ChannelError> {
        if !self.source.copies() {
            return Ok(Payload::InPlace(at, length));
        }
        // SAFETY: such bytes are mapped as long as the end has their record, and aligned to 8
        // bytes at least.
        let copy = unsafe { PayloadCopy::new(at, length) };
        copy.map(Payload::Copied).ok_or_else(|| {
            let error = MemoryError::new(MemoryUse::LargeMessage, length, "malloc", Errno::NOMEM);
            self.end.failed(FailureReason::Memory(error))
        })
    }
}
