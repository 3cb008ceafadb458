//! Messages that do not fit the ring: the memory in which they are encoded, and their announcement
//! in the ring.

use ibex_protocol::format::{
    control::Ask,
    message_extension::MessageExtension,
    record::{LargeAnnouncement, RecordKind},
};
use ibex_ring::parking::{Patience, TimedOut};

use super::{Abort, Encoder, steps::FOR_RELEASE};
use crate::endpoint::{
    large_waits,
    send_end::SendEnd,
    send_producer::{SendPlace, SendProducer},
    send_wait::{Registration, Room},
};
use crate::session::{ChannelError, FailureReason, Full};
use crate::wire::MessageBytes;

/// Steps that need the right to the producer.
impl SendEnd {
    /// Sends a message that does not fit the ring. The message gets separate memory, and the ring
    /// carries its announcement, which keeps the order.
    pub(super) fn send_large(
        &self,
        producer: &mut SendProducer,
        (kind, extension): (RecordKind, &MessageExtension<'_>),
        size: Option<usize>,
        patience: Patience,
        encode: &mut Encoder<'_>,
    ) -> Result<u64, ChannelError> {
        let announced = LargeAnnouncement::BYTES + extension.bytes();
        let limit = usize::try_from(producer.max_message_bytes).unwrap_or(usize::MAX);
        let mut room = size.unwrap_or(producer.largest * 2).min(limit);
        loop {
            let mut place = self.large_place(producer, room, patience)?;
            match encode(&mut place.bytes(&mut producer.segments)[..room]) {
                Ok(length) => {
                    self.wait_room(producer, announced, patience)?;
                    return Ok(self.publish_large(producer, (kind, extension), place, length));
                }
                Err(Abort::Failed(error)) => return Err(self.failed(FailureReason::Encode(error))),
                Err(Abort::Overflow) if room == limit => return Err(self.too_long(None)),
                Err(Abort::Overflow) => room = room.saturating_mul(2).min(limit),
            }
        }
    }

    /// Returns memory for a large message. Waits while the allowed number of large messages is
    /// under way.
    pub(super) fn large_place(
        &self,
        producer: &mut SendProducer,
        bytes: usize,
        patience: Patience,
    ) -> Result<SendPlace, ChannelError> {
        self.wait_large(producer, bytes, patience)?;
        self.wait_easy(producer, bytes, patience)?;
        let forget = |emptied| self.session.requests.pass_forget(self.id, emptied);
        let place = self.path.take_large(self, producer, bytes, forget);
        place.map_err(|error| self.failed(FailureReason::Memory(error)))
    }

    /// Waits while the allowed number of large messages, or of their bytes, is under way.
    pub(super) fn wait_large(
        &self,
        producer: &mut SendProducer,
        bytes: usize,
        patience: Patience,
    ) -> Result<(), ChannelError> {
        let (most, all_out) = self.path.most_large(self, bytes);
        let all_out = |_: &SendProducer| all_out;
        self.wait_until(producer, patience, (Ask::default(), all_out), |producer| {
            self.path.retire_large(self, producer);
            producer.large.len() < most
        })?;
        let began = producer.out.waits.begin(bytes);
        let full = |_: &SendProducer| Full::Unreleased;
        let admitted = self.wait_until(producer, patience, (FOR_RELEASE, full), |producer| {
            self.path.retire_large(self, producer);
            producer.admits(bytes)
        });
        producer.out.waits.end(began);
        admitted
    }

    /// Waits while more bytes are under way than both ends keep in their caches, as long as the
    /// receiver releases messages about as fast as it could read them.
    fn wait_easy(
        &self,
        producer: &mut SendProducer,
        bytes: usize,
        patience: Patience,
    ) -> Result<(), ChannelError> {
        let Patience::Until(deadline) = patience else {
            return Ok(());
        };
        while !self.path.is_easy(producer, bytes)
            && producer.out.hurries_until <= producer.ring.sequence()
        {
            let before = producer.large.len();
            let began = producer.out.waits.begin(bytes);
            let moment = began + large_waits::time_of(bytes);
            let room = Room {
                end: self,
                producer: &mut *producer,
                ask: FOR_RELEASE,
                registration: Registration::default(),
                enough: |producer: &mut SendProducer| {
                    self.path.retire_large(self, producer);
                    producer.large.len() < before
                },
            };
            let until = deadline.map_or(moment, |deadline| moment.min(deadline));
            let released = self.session.wait_for(Some(until), room);
            producer.out.waits.end(began);
            match released {
                Ok(answer) => answer?,
                Err(TimedOut) => {
                    producer.out.hurries_until = producer.ring.sequence() + HURRIED_MESSAGES;
                }
            }
        }
        Ok(())
    }

    /// Publishes the announcement of the message in `place`. The caller has made sure that the ring
    /// has room for it.
    #[cold]
    pub(super) fn publish_large(
        &self,
        producer: &mut SendProducer,
        (kind, extension): (RecordKind, &MessageExtension<'_>),
        place: SendPlace,
        length: usize,
    ) -> u64 {
        // The engine must know of the bytes before any reader can see the announcement.
        let (slot, announcement) = match place {
            SendPlace::Lease(lease) => (0, self.hand_over(producer, lease.into(), length)),
            SendPlace::Slot(slot) => {
                let place = producer.segments.slot(slot);
                let (capacity, fd) = (place.capacity(), place.announce());
                let is_new = fd.is_some();
                if let Some(fd) = fd {
                    let sequence = producer.ring.sequence() + 1;
                    let session = &self.session;
                    session
                        .requests
                        .pass_large(self.id, sequence, slot, length, capacity, fd);
                }
                (slot, LargeAnnouncement::in_segment(length, slot, is_new))
            }
        };
        self.announce_large(producer, (kind, extension), slot, announcement, length)
    }

    /// Hands the bytes of the next message to the engine, and returns its announcement.
    pub(super) fn hand_over(
        &self,
        producer: &SendProducer,
        bytes: MessageBytes,
        length: usize,
    ) -> LargeAnnouncement {
        let sequence = producer.ring.sequence() + 1;
        let requests = &self.session.requests;
        match requests.send_large(self.id, sequence, length, bytes) {
            None => LargeAnnouncement::in_chunks(length),
            Some(eager_block) => LargeAnnouncement::in_eager_block(length, eager_block),
        }
    }

    /// Publishes the announcement of a message whose bytes are known to the engine or, in `slot`,
    /// to the peer.
    pub(super) fn announce_large(
        &self,
        producer: &mut SendProducer,
        (kind, extension): (RecordKind, &MessageExtension<'_>),
        slot: u32,
        announcement: LargeAnnouncement,
        length: usize,
    ) -> u64 {
        let sequence = producer.ring.sequence() + 1;
        let payload = announcement.bytes().iter().copied();
        let payload = payload.chain(extension.encoded());
        for (to, from) in producer.ring.slot().iter_mut().zip(payload) {
            to.write(from);
        }
        producer.large.push_back((sequence, slot));
        if producer.goes_out(sequence, length) {
            // The sender will soon wait for releases. Asking now brings the answer by then.
            let released = producer.ring.released().messages + 1;
            let ask = Ask {
                released,
                ..Ask::default()
            };
            self.path.ask_ahead(self, &ask);
        }
        self.large_messages.add(1);
        self.large_bytes.add(length as u64);
        // The message's bytes count as untransmitted. So the announcement goes out at once, and the
        // answer comes while the application prepares the next message.
        producer.untransmitted += length;
        let announced = announcement.bytes().len() + extension.bytes();
        self.publish(producer, kind, announced)
    }
}

/// Messages after which a sender looks again whether the receiver keeps up, when it has not.
const HURRIED_MESSAGES: u64 = 32;
