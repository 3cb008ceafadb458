//! Messages that lie in memory of the program's own: sent from there, or copied as others are.

use std::{
    mem::MaybeUninit,
    task::{Poll, Waker},
};

use ibex_protocol::format::{
    control::Ask,
    message_extension::MessageExtension,
    record::{LargeAnnouncement, RecordKind},
    trace_context::TraceContext,
};
use ibex_ring::{
    memory::{RegionSlice, copy_slice},
    parking::Patience,
};

use super::{Abort, Entered, SendHandle};
use crate::{
    endpoint::{
        send_end::SendEnd,
        send_producer::{SendProducer, SlicePlace},
    },
    session::{ChannelError, FailureReason},
    shared_memory::RegionSlot,
};

/// A message whose body is a slice of the program's memory.
#[derive(Clone, Copy, Debug)]
pub struct SliceMessage<'a> {
    /// The header beside the body; empty if there is none.
    pub header: &'a [u8],
    /// The body.
    pub body: &'a RegionSlice,
}

impl<'a> From<&'a RegionSlice> for SliceMessage<'a> {
    fn from(body: &'a RegionSlice) -> Self {
        Self { header: &[], body }
    }
}

impl SendHandle {
    /// Returns whether a message of this length may be sent and waits for the peer's grant: it is too
    /// long for a frame of the session, and for a block that was granted ahead.
    #[must_use]
    pub fn needs_grant(&self, bytes: usize) -> bool {
        let agreed = self.end.state.agreed();
        bytes > self.eager_bytes()
            && !self.end.session.frame_path.may_land(bytes)
            && agreed.is_some_and(|agreed| bytes as u64 <= agreed.max_message_bytes)
    }

    /// Sends a slice as the body of a message, from where it lies if the path can. Until the wire is
    /// done with the message, or the peer that reads it there has released it, the engine holds a
    /// clone of the slice. The header is copied.
    pub fn send_region(
        &mut self,
        message: SliceMessage<'_>,
        patience: Patience,
    ) -> Result<u64, ChannelError> {
        self.enter(patience)?.send_region(message, patience)
    }

    /// Sends a slice as the body of a message, for a task, as [`send_region`](Self::send_region)
    /// does.
    pub fn poll_send_region(
        &mut self,
        waker: &Waker,
        message: SliceMessage<'_>,
    ) -> Poll<Result<u64, ChannelError>> {
        self.poll_entered(waker, |entered| {
            entered.send_region(message, Patience::None)
        })
    }
}

impl Entered<'_> {
    /// Sends a slice of the program's memory as [`SendHandle::send_region`] does, and gives the
    /// right back.
    fn send_region(
        mut self,
        message: SliceMessage<'_>,
        patience: Patience,
    ) -> Result<u64, ChannelError> {
        let SliceMessage { header, body } = message;
        let (end, mut unreadable) = (self.end, None);
        end.check_header(header)?;
        let fits = |producer: &mut SendProducer| producer.takes(body.len());
        let sent = if header.is_empty() && self.producer().is_some_and(fits) {
            let copy = |slot: &mut _| copy(body, slot, &mut unreadable);
            self.send(Some(body.len()), patience, copy)
        } else {
            let sent = self.find_room_and_send_region(message, patience, &mut unreadable);
            sent.inspect_err(|_| end.gave_up_waiting())
        };
        sent.map_err(|error| match unreadable {
            Some(why) => end.failed(FailureReason::Unreadable(why)),
            None => error,
        })
    }

    /// Sends a slice from where it lies, if it is long enough and the path can, or copies it.
    fn find_room_and_send_region(
        &mut self,
        message: SliceMessage<'_>,
        patience: Patience,
        unreadable: &mut Option<String>,
    ) -> Result<u64, ChannelError> {
        let SliceMessage { header, body } = message;
        let end = self.end;
        let producer = self.open_producer(patience)?;
        producer.largest = end.path.longest_record(end, &producer.ring);
        let extension = end.extension(header);
        if end.may_send_in_place(producer, body.len())
            && let Some(sequence) = end.send_in_place(producer, body, &extension, patience)?
        {
            return Ok(sequence);
        }
        let is_large = body.len() + extension.bytes() > producer.largest;
        let sequence = self.send_extended(&extension, Some(body.len()), patience, &mut |slot| {
            copy(body, slot, unreadable)
        })?;
        if is_large {
            end.region_bytes_copied.add(body.len() as u64);
        }
        Ok(sequence)
    }
}

impl SendEnd {
    /// Checks that a message may have this header.
    fn check_header(&self, header: &[u8]) -> Result<(), ChannelError> {
        let limit = MessageExtension::MAX_HEADER_BYTES;
        match header.len() {
            length if length > limit => {
                Err(self.failed(FailureReason::HeaderTooLong { length, limit }))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a slice of this length is sent from where it lies if its memory can.
    fn may_send_in_place(&self, producer: &SendProducer, length: usize) -> bool {
        length > producer.largest
            && length as u64 <= producer.max_message_bytes
            && !self.state.is_over()
            && self.path.sends_in_place(self)
    }

    /// Returns the extension of a message that is sent now with this header: with a trace context if
    /// the channel carries them.
    pub(super) fn extension<'h>(&self, header: &'h [u8]) -> MessageExtension<'h> {
        let is_traced = self.state.agreed().is_some_and(|agreed| agreed.is_traced);
        let trace = is_traced.then(|| self.session.node.trace_context());
        MessageExtension {
            trace: trace.flatten().map(TraceContext::to_bytes),
            header,
        }
    }

    /// Sends a message that does not fit the ring from where it lies; `None` if the session cannot.
    /// The memory is registered, or shared, once there is room, so that a full channel is not asked in vain.
    fn send_in_place(
        &self,
        producer: &mut SendProducer,
        slice: &RegionSlice,
        extension: &MessageExtension<'_>,
        patience: Patience,
    ) -> Result<Option<u64>, ChannelError> {
        self.wait_large(producer, slice.len(), patience)?;
        let announced = LargeAnnouncement::OF_PART_BYTES + extension.bytes();
        self.wait_room(producer, announced, patience)?;
        let kind = match extension.is_empty() {
            true => RecordKind::Large,
            false => RecordKind::ExtendedLarge,
        };
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
        let sequence = self.announce_large(producer, (kind, extension), slot, announcement, length);
        if self.session.resumes {
            // The slice is held until the peer says that it has the message.
            self.path.ask_ahead(self, &Ask::received(sequence));
        }
        Ok(Some(sequence))
    }
}

/// Copies a message's bytes into `slot`. If they cannot be read, `unreadable` says so.
fn copy(
    body: &RegionSlice,
    slot: &mut [MaybeUninit<u8>],
    unreadable: &mut Option<String>,
) -> Result<usize, Abort> {
    let slot = slot.get_mut(..body.len()).ok_or(Abort::Overflow)?;
    copy_slice(body, slot).map_err(|why| {
        *unreadable = Some(why.clone());
        Abort::Failed(why.into())
    })?;
    Ok(body.len())
}
