//! The right of a handle to the producer, and the sending of a message by it.

use std::{mem::MaybeUninit, sync::Arc};

use ibex_protocol::format::{
    message_extension::MessageExtension,
    record::{LargeAnnouncement, RecordKind},
};
use ibex_ring::parking::Patience;

use super::{Abort, Encoder};
use crate::endpoint::{
    send_end::{SendEnd, Writing},
    send_producer::SendProducer,
};
use crate::session::{ChannelError, FailureReason};

/// The right to touch the producer (rules 1 and 2 of the sending end).
pub(in crate::channel) struct Entered<'a> {
    pub(in crate::channel) end: &'a Arc<SendEnd>,
    /// True if the right came from the turnstile, false if it came from the bias.
    pub(in crate::channel) in_turn: bool,
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.in_turn {
            self.end.turnstile.leave();
        } else {
            self.end.bias.leave();
        }
    }
}

impl Entered<'_> {
    /// Sends a message as [`SendHandle::send`] does, and gives the right back.
    #[inline(always)]
    pub(in crate::channel) fn send(
        mut self,
        size: Option<usize>,
        patience: Patience,
        mut encode: impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Result<u64, ChannelError> {
        let end = self.end;
        if let Some(producer) = self.producer()
            && producer.takes(size.unwrap_or(producer.typical))
            && !end.state.is_over_or_traced()
        {
            match encode(producer.slot()) {
                Ok(length) if length as u64 <= producer.max_message_bytes => {
                    return Ok(end.publish(producer, RecordKind::Data, length));
                }
                Ok(length) => return Err(end.too_long(Some(length as u64))),
                Err(Abort::Overflow) => {}
                Err(Abort::Failed(error)) => return Err(end.failed(FailureReason::Encode(error))),
            }
        }
        self.send_slow(size, patience, &mut encode)
    }

    #[inline(always)]
    fn writing(&mut self) -> &mut Writing {
        // SAFETY: rule 1, 2 or 4 gives exclusive access for as long as this value lives. A handle
        // makes no second such value meanwhile, and the result borrows this one exclusively.
        unsafe { &mut *self.end.writing.get() }
    }

    /// Returns the producer, if the ring exists.
    #[inline(always)]
    pub(in crate::channel) fn producer(&mut self) -> Option<&mut SendProducer> {
        self.writing().producer.as_deref_mut()
    }

    /// Returns the producer of an open channel. The first send makes the ring.
    pub(in crate::channel) fn open_producer(
        &mut self,
        patience: Patience,
    ) -> Result<&mut SendProducer, ChannelError> {
        let end = self.end;
        end.opened(patience)?;
        let Writing { producer, before } = self.writing();
        match producer {
            Some(producer) => Ok(producer),
            none => {
                // If memory is refused now, the next send tries again.
                let made = SendProducer::create(end, *before)
                    .map_err(|error| end.failed(FailureReason::Memory(error)))?;
                Ok(none.insert(Box::new(made)))
            }
        }
    }

    /// Publishes the current reservation.
    #[inline(always)]
    pub(in crate::channel) fn publish_reserved(&mut self, length: usize) -> u64 {
        let end = self.end;
        let Some(producer) = self.producer() else {
            unreachable!("a reservation has a producer")
        };
        match producer.reserved_large.take() {
            None => end.publish(producer, RecordKind::Data, length),
            Some(place) => {
                let form = (RecordKind::Large, &MessageExtension::default());
                end.publish_large(producer, form, place, length)
            }
        }
    }

    /// Sends a message over an open channel that may have to be waited for.
    #[cold]
    #[inline(never)]
    pub(super) fn send_slow(
        &mut self,
        size: Option<usize>,
        patience: Patience,
        encode: &mut Encoder<'_>,
    ) -> Result<u64, ChannelError> {
        let sent = self.find_room_and_send(size, patience, encode);
        if sent.is_err() {
            self.end.gave_up_waiting();
        }
        sent
    }

    fn find_room_and_send(
        &mut self,
        size: Option<usize>,
        patience: Patience,
        encode: &mut Encoder<'_>,
    ) -> Result<u64, ChannelError> {
        self.open_producer(patience)?;
        let extension = self.end.extension(&[]);
        self.send_extended(&extension, size, patience, encode)
    }

    /// Sends a message that is encoded into the ring, or into memory of its own, with this extension.
    pub(super) fn send_extended(
        &mut self,
        extension: &MessageExtension<'_>,
        size: Option<usize>,
        patience: Patience,
        encode: &mut Encoder<'_>,
    ) -> Result<u64, ChannelError> {
        let end = self.end;
        let (in_ring, beside) = match extension.is_empty() {
            true => (RecordKind::Data, RecordKind::Large),
            false => (RecordKind::ExtendedData, RecordKind::ExtendedLarge),
        };
        let producer = self.open_producer(patience)?;
        producer.largest = end.path.longest_record(end, &producer.ring);
        if let Some(length) = size.filter(|&length| length as u64 > producer.max_message_bytes) {
            return Err(end.too_long(Some(length as u64)));
        }
        let behind = extension.bytes();
        let mut wanted = size.unwrap_or(producer.typical) + behind;
        while wanted <= producer.largest {
            end.wait_room(producer, wanted, patience)?;
            let slot = producer.slot();
            let room = slot.len();
            match append_extension(extension, slot, encode) {
                Ok(length) if length as u64 > producer.max_message_bytes => {
                    return Err(end.too_long(Some(length as u64)));
                }
                Ok(length) => return Ok(end.publish(producer, in_ring, length + behind)),
                Err(Abort::Failed(error)) => return Err(end.failed(FailureReason::Encode(error))),
                Err(Abort::Overflow) if room >= producer.largest => break,
                Err(Abort::Overflow) => wanted = (room * 2).clamp(wanted + 1, producer.largest),
            }
        }
        end.send_large(producer, (beside, extension), size, patience, encode)
    }

    /// Finds a place in which `length` bytes can be built: room in the ring, or separate memory.
    #[inline(always)]
    pub(in crate::channel) fn place(
        &mut self,
        length: usize,
        patience: Patience,
    ) -> Result<(), ChannelError> {
        let end = self.end;
        match self.producer() {
            Some(producer)
                if producer.takes(length)
                    && length as u64 <= producer.max_message_bytes
                    && !end.state.is_over() =>
            {
                Ok(())
            }
            _ => self.find_place(length, patience),
        }
    }

    /// Makes a place for a message, and waits for room.
    #[cold]
    #[inline(never)]
    fn find_place(&mut self, length: usize, patience: Patience) -> Result<(), ChannelError> {
        let end = self.end;
        let producer = self.open_producer(patience)?;
        if length as u64 > producer.max_message_bytes {
            return Err(end.too_long(Some(length as u64)));
        }
        if length <= producer.largest {
            return end.wait_room(producer, length, patience);
        }
        if producer.has_place(length) {
            return Ok(());
        }
        let place = end.large_place(producer, length, patience)?;
        end.wait_room(producer, LargeAnnouncement::BYTES, patience)?;
        producer.reserved_large = Some(place);
        Ok(())
    }
}

/// Encodes a message with an extension behind it, if that is not empty. Returns the length of the
/// message alone.
fn append_extension(
    extension: &MessageExtension<'_>,
    slot: &mut [MaybeUninit<u8>],
    encode: &mut Encoder<'_>,
) -> Result<usize, Abort> {
    let room = slot.len().checked_sub(extension.bytes());
    let room = room.ok_or(Abort::Overflow)?;
    let length = encode(&mut slot[..room])?;
    for (to, from) in slot[length..].iter_mut().zip(extension.encoded()) {
        to.write(from);
    }
    Ok(length)
}
