//! Messages that lie in memory of the program's own: sent from there, or copied as others are.

use std::{
    mem::MaybeUninit,
    task::{Poll, Waker},
};

use ibex_protocol::format::{
    control::Ask,
    record::{LargeAnnouncement, RecordKind},
};
use ibex_ring::{memory::RegionSlice, parking::Patience};

use super::{Abort, Entered, SendHandle};
use crate::{
    endpoint::{
        send_end::SendEnd,
        send_producer::{SendProducer, SlicePlace},
    },
    session::ChannelError,
    shared_memory::RegionSlot,
};

impl SendHandle {
    /// Sends the bytes of a slice, from where they lie if the path can. Until the wire is done with
    /// the message, or the peer that reads it there has released it, the engine holds a clone of the
    /// slice.
    pub fn send_region(
        &mut self,
        slice: &RegionSlice,
        patience: Patience,
    ) -> Result<u64, ChannelError> {
        self.enter(patience)?.send_region(slice, patience)
    }

    /// Sends the bytes of a slice, for a task, as [`send_region`](Self::send_region) does.
    pub fn poll_send_region(
        &mut self,
        waker: &Waker,
        slice: &RegionSlice,
    ) -> Poll<Result<u64, ChannelError>> {
        self.poll_entered(waker, |entered| entered.send_region(slice, Patience::None))
    }
}

impl Entered<'_> {
    /// Sends a slice of the program's memory as [`SendHandle::send_region`] does, and gives the
    /// right back.
    fn send_region(mut self, slice: &RegionSlice, patience: Patience) -> Result<u64, ChannelError> {
        let sent = self.send_in_place(slice, patience);
        match sent.inspect_err(|_| self.end.gave_up_waiting())? {
            Some(sequence) => Ok(sequence),
            None => self.send(Some(slice.len()), patience, |slot| copy(slice, slot)),
        }
    }

    /// Sends a slice from where it lies, if it is long enough and the path can; `None` if not.
    fn send_in_place(
        &mut self,
        slice: &RegionSlice,
        patience: Patience,
    ) -> Result<Option<u64>, ChannelError> {
        let end = self.end;
        let producer = self.open_producer(patience)?;
        producer.largest = end.path.longest_record(end, &producer.ring);
        let length = slice.len();
        let is_large = length > producer.largest
            && length as u64 <= producer.max_message_bytes
            // A trace context would follow the bytes.
            && !end.state.is_over_or_traced();
        match is_large && end.path.sends_in_place(end) {
            true => end.send_in_place(producer, slice, patience),
            false => Ok(None),
        }
    }
}

impl SendEnd {
    /// Sends a message that does not fit the ring from where it lies; `None` if the session cannot.
    /// The memory is registered, or shared, once there is room, so that a full channel is not asked in vain.
    fn send_in_place(
        &self,
        producer: &mut SendProducer,
        slice: &RegionSlice,
        patience: Patience,
    ) -> Result<Option<u64>, ChannelError> {
        self.wait_large(producer, slice.len(), patience)?;
        self.wait_room(producer, LargeAnnouncement::OF_PART_BYTES, patience)?;
        let (length, sequence) = (slice.len(), producer.ring.sequence() + 1);
        let requests = &self.session.requests;
        let forget = |emptied| requests.pass_forget(self.id, emptied);
        let (slot, announcement) = match self.path.slice_place(self, producer, slice, forget) {
            None => return Ok(None),
            Some(SlicePlace::Sent(bytes)) => (0, self.hand_over(producer, bytes, length)),
            Some(SlicePlace::Mapped {
                slot,
                offset,
                slice,
            }) => {
                // The engine must know of the slice before any reader can see the announcement.
                requests.pass_slice(self.id, sequence, length, slot, slice);
                let RegionSlot { index, is_new, .. } = slot;
                let announcement = LargeAnnouncement::of_part(length, index, is_new, offset);
                (index, announcement)
            }
        };
        let sequence =
            self.announce_large(producer, RecordKind::Large, slot, &announcement, length);
        if self.session.resumes {
            // The slice is held until the peer says that it has the message.
            self.path.ask_ahead(self, &Ask::received(sequence));
        }
        Ok(Some(sequence))
    }
}

/// Copies a message's bytes into `slot`.
fn copy(bytes: &[u8], slot: &mut [MaybeUninit<u8>]) -> Result<usize, Abort> {
    let slot = slot.get_mut(..bytes.len()).ok_or(Abort::Overflow)?;
    for (to, from) in slot.iter_mut().zip(bytes) {
        to.write(*from);
    }
    Ok(bytes.len())
}
