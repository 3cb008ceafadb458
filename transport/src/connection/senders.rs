//! A sending end in the engine: its ring, which the engine walks for records, and its large
//! messages.

use std::{collections::VecDeque, ptr::NonNull, sync::Arc, time::Instant};

use ibex_base::sync::Asymmetry;
use ibex_protocol::{
    format::record::{self, LargeAnnouncement, Layout},
    id_map::IdMap,
    session::{Body, RecordSource, Run, Session},
    transfer::{eager_write::EagerBlockId, rendezvous::Chunk},
};
use ibex_ring::{
    Arm, Consumer, Mapped, Released,
    end_status::{ReceiverWords, Words},
    memory::RingLease,
};

use super::{core::Common, idle::SenderSilence, passed_slices::PassedSlices, retained::Retained};
use crate::{
    endpoint::{send_end::SendEnd, stats::ChannelTotals},
    wire::{AnyWire, MessageBytes, MessageMemory, SendRingMemory, Wire},
};

/// The sending ends of a session.
#[derive(Default)]
pub(crate) struct Senders {
    pub(super) ends: IdMap<SenderState>,
    /// The counts of the ends that are gone.
    pub(super) gone: ChannelTotals,
    /// Ends whose ring is looked at in every turn.
    pub(super) hot: Vec<u32>,
    /// The time until which a session that closes waits for handles that are inside.
    pub(super) leaving_until: Option<Instant>,
}

/// A sending end in the engine.
pub(super) struct SenderState {
    pub(super) end: Arc<SendEnd>,
    /// The ring, present while the channel is used; boxed, so that an unused end stays small.
    pub(super) ring: Option<Box<AttachedRing>>,
    /// Large messages that are not completely in frames, or that are kept until they have arrived.
    pub(super) large: VecDeque<LargeOut>,
    /// No handle publishes any more.
    pub(super) is_closed: bool,
    /// The node closes the end and has not announced its last message yet, because a handle may be
    /// inside.
    pub(super) is_ending: bool,
    /// The last message that was announced to the peer. Shared memory only.
    pub(super) ended_at: Option<u64>,
    /// The peer's words at the time when handles were last woken. Shared memory only.
    pub(super) seen: Option<(u64, u64, bool)>,
    /// The findings about a ring that is taken back when the handles are silent.
    pub(super) silence: Option<SenderSilence>,
    /// Slices of the program's that the peer reads, if there are some. Shared memory only.
    pub(super) passed: Option<Box<PassedSlices>>,
}

pub(super) struct AttachedRing {
    pub(super) consumer: Consumer<Mapped>,
    pub(super) memory: SendRingMemory,
    words: Words<ReceiverWords>,
    arm: Arm,
    is_armed: bool,
    /// Times of messages are kept.
    pub(super) is_timed: bool,
}

impl AttachedRing {
    /// Goes on behind records that were sent.
    #[inline]
    pub(super) fn pass(&mut self, bytes: usize, records: u64) {
        self.consumer.advance_by(bytes, records);
        self.arm
            .stay_awake(&self.words.armed, self.consumer.read().messages);
    }
}

pub(super) struct LargeOut {
    pub(super) sequence: u64,
    pub(super) memory: MessageMemory,
    /// The last frame of the message, once all of it is in frames. The message is kept until it has
    /// arrived, in case the wire breaks.
    sent_in: Option<u64>,
}

impl SenderState {
    pub(super) fn new(end: Arc<SendEnd>) -> Self {
        Self {
            end,
            ring: None,
            large: VecDeque::new(),
            is_closed: false,
            is_ending: false,
            ended_at: None,
            seen: None,
            silence: None,
            passed: None,
        }
    }

    /// Tells a peer that reads the ring itself that the channel ends after message `last`.
    pub(super) fn close_in_order(&mut self, last: u64) {
        self.ended_at = self.end.path.close_in_order(&self.end, last);
    }

    /// Notes that a chunk is in frame (or write) `until`, as
    /// [`in_flight`](crate::wire::Wire::in_flight) counts. After a message's last chunk, its memory
    /// is retained for these frames only, unless it is `kept`. Returns whether this was the last
    /// chunk.
    pub(super) fn chunk_went(
        &mut self,
        chunk: Chunk,
        until: u64,
        kept: bool,
        retained: &mut Retained,
    ) -> bool {
        self.end.large_bytes_sent.add(chunk.bytes as u64);
        // A message that has a block does not wait for an earlier one that waits for its grant.
        let is_last =
            |large: &LargeOut| large.sequence == chunk.sequence && large.memory.ends_with(chunk);
        let Some(index) = self.large.iter().position(is_last) else {
            return false;
        };
        if kept {
            self.large[index].sent_in = Some(until);
        } else if let Some(large) = self.large.remove(index) {
            retained.keep_message(self.end.clone(), large, Some(until));
        }
        true
    }

    /// Releases the kept messages up to `received`, which have arrived. A peer may claim that of a
    /// message that is still being sent; the session's own state decides.
    pub(super) fn large_arrived(
        &mut self,
        received: u64,
        session: &Session,
        retained: &mut Retained,
    ) -> bool {
        let mut any = false;
        while let Some(large) = self.large.pop_front() {
            if large.sequence > received || session.ends.sends_large(self.end.id, large.sequence) {
                self.large.push_front(large);
                return any;
            }
            // A message that arrived over an earlier wire is in no frame of this one.
            let until = large.sent_in.unwrap_or(0);
            retained.keep_message(self.end.clone(), large, Some(until));
            any = true;
        }
        any
    }

    /// Schedules the messages that have not arrived to be sent again, because the wire broke.
    pub(super) fn large_is_sent_again(&mut self) {
        for large in &mut self.large {
            large.sent_in = None;
        }
    }

    /// Returns the ring and the large messages that this end sends from.
    pub(super) fn memory(
        &mut self,
    ) -> (
        Option<&mut SendRingMemory>,
        impl Iterator<Item = &mut MessageMemory>,
    ) {
        let ring = self.ring.as_mut().map(|ring| &mut ring.memory);
        (ring, self.large.iter_mut().map(|large| &mut large.memory))
    }

    /// Restarts the walk of the ring after message `received`, which ends at ring position
    /// `position`. Returns false if that position is impossible.
    pub(super) fn replay(&mut self, received: u64, position: u64) -> bool {
        let Some(ring) = &mut self.ring else {
            return false;
        };
        ring.consumer.go_back(Released {
            messages: received,
            position,
        })
    }

    /// Returns a large message that this end is sending or keeps.
    pub(super) fn large_out(&self, sequence: u64) -> Option<&LargeOut> {
        self.large.iter().find(|large| large.sequence == sequence)
    }

    /// Returns the sequence of the large message that the byte at `place` belongs to, its number in
    /// the message, and the message's length.
    pub(super) fn large_at(&self, place: NonNull<u8>) -> Option<(u64, u64, u64)> {
        self.large.iter().find_map(|large| {
            let (base, length) = (large.memory.base(), large.memory.length());
            let at = place.addr().get().checked_sub(base.addr().get())?;
            (at < length).then_some((large.sequence, at as u64, length as u64))
        })
    }

    #[inline]
    fn has_records(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| !ring.consumer.is_empty())
    }
}

impl AttachedRing {
    /// Returns where the byte at a ring position lies.
    #[inline]
    fn at(&self, position: u64) -> NonNull<u8> {
        let offset = position as usize & (self.memory.lease().capacity() - 1);
        // SAFETY: the offset is inside the first of the two windows.
        unsafe { self.memory.lease().base().add(offset) }
    }
}

/// The findings of a poll of the hot rings.
pub(super) struct RingFindings {
    /// There are records that can be sent, as far as the engine knows.
    pub(super) is_sendable: bool,
    /// A large message waits for its grant, or to be sent.
    pub(super) has_large: bool,
}

/// The rings of a session's senders, as the session sees them.
pub(super) struct Rings<'a>(pub(super) &'a mut IdMap<SenderState>);

impl RecordSource for Rings<'_> {
    #[inline]
    fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run> {
        let sender = self.0.get_mut(end)?;
        let ring = sender.ring.as_mut()?;
        // This process itself writes these rings, so a malformed record is a bug in ibex.
        let run = ring
            .consumer
            .walk_frame(batch, single)
            .unwrap_or_else(|error| unreachable!("our own ring: {error}"));
        if run.records == 0 {
            return None;
        }
        let position = ring.consumer.position();
        ring.pass(run.bytes, run.records);
        if ring.is_timed {
            sender.end.was_framed(ring.consumer.read().messages);
        }
        Some(Run {
            position,
            bytes: run.bytes,
            records: run.records,
            announcement: run.large.map_or(0, |record| record.size),
        })
    }

    #[inline]
    fn has_records(&mut self, end: u32) -> bool {
        self.0.get(end).is_some_and(SenderState::has_records)
    }

    #[cold]
    fn forget_block(&mut self, end: u32, position: u64) {
        let Some(ring) = self.0.get(end).and_then(|sender| sender.ring.as_ref()) else {
            return;
        };
        // SAFETY: the announcement's payload follows its header word, inside the windows. It was
        // published, so its handle does not write there any more, and it is not released.
        let payload = unsafe {
            let payload = ring.at(position).add(record::HEADER_BYTES);
            payload.cast::<[u8; LargeAnnouncement::BYTES]>().as_mut()
        };
        LargeAnnouncement::forget_block(payload);
    }
}

impl Senders {
    /// Takes over the ring that the handle of a sending end has made. The messages counted in
    /// `before` are released.
    pub(super) fn take_ring(
        &mut self,
        end: u32,
        lease: Arc<RingLease>,
        layout: Layout,
        before: Released,
        common: &Common,
    ) {
        let Some(sender) = self.ends.get_mut(end) else {
            return;
        };
        let Some(words) = sender.end.theirs.get().cloned() else {
            return;
        };
        // SAFETY: a double mapping of `capacity` bytes, kept by the lease beside it.
        let mapped = unsafe { Mapped::new(lease.base(), lease.capacity()) };
        let consumer = Consumer::resume(mapped, layout, before);
        let mut ring = AttachedRing {
            consumer,
            memory: SendRingMemory::new(lease, &common.shared.frame_path),
            words,
            arm: Arm::new(),
            is_armed: true,
            is_timed: sender.end.times.is_some(),
        };
        // The ring begins cold: the first message rings the engine.
        // No publisher has the ring yet, so no barrier need follow.
        let _ = ring.arm.set(&ring.words.armed, Asymmetry::of_process());
        sender.ring = Some(Box::new(ring));
        sender.silence = Some(SenderSilence::new());
    }

    /// Returns whether the end is over.
    pub(super) fn is_over(&self, end: u32) -> bool {
        let sender = self.ends.get(end);
        sender.is_some_and(|sender| sender.end.state.is_over())
    }

    /// Returns whether a large message is being sent, or kept until it has arrived.
    pub(super) fn is_out(&self, end: u32, sequence: u64) -> bool {
        let sender = self.ends.get(end);
        sender.is_some_and(|sender| sender.large_out(sequence).is_some())
    }

    /// Gives up the large messages, from `first` on, of an end whose peer takes them no more.
    pub(super) fn forget_large(&mut self, end: u32, first: u64, retained: &mut Retained) {
        if let Some(sender) = self.ends.get_mut(end) {
            let before = sender.large.partition_point(|large| large.sequence < first);
            for large in sender.large.drain(before..) {
                retained.keep_message(sender.end.clone(), large, None);
            }
        }
    }

    /// Takes over a large message. It waits for its grant, or goes into the block that this
    /// returns.
    pub(super) fn take_large(
        &mut self,
        end: u32,
        sequence: u64,
        length: usize,
        bytes: MessageBytes,
        common: &mut Common,
    ) -> Option<EagerBlockId> {
        let sender = self.ends.get_mut(end)?;
        sender.large.push_back(LargeOut {
            sequence,
            memory: MessageMemory::new(bytes, length, &common.shared.frame_path),
            sent_in: None,
        });
        let ends = &mut common.session.ends;
        ends.announce_large(end, sequence, length as u64)
    }

    /// Notes that a cold ring has records. Every turn looks at the ring from now on.
    pub(crate) fn ring_is_ready(&mut self, end: u32) {
        if let Some(ring) = self
            .ends
            .get_mut(end)
            .and_then(|sender| sender.ring.as_mut())
            && ring.is_armed
        {
            ring.is_armed = false;
            ring.arm.disarm(&ring.words.armed);
            self.hot.push(end);
        }
    }

    /// Tells the session which hot rings have records that a receiver wants.
    #[inline]
    pub(super) fn poll_rings(&mut self, wire: &AnyWire, session: &mut Session) -> RingFindings {
        let (mut any, mut has_large) = (false, false);
        for &end in &self.hot {
            let Some(sender) = self.ends.get(end) else {
                continue;
            };
            has_large |= sender.large.iter().any(|large| large.sent_in.is_none());
            any |= sender.has_records() && session.ends.mark_ready(end);
        }
        RingFindings {
            is_sendable: any && !wire.is_blocked(),
            has_large,
        }
    }

    /// Sets the armed words of all hot rings. Returns `None` if there are none. Otherwise a barrier
    /// must follow, a heavy one for `true`, and then
    /// [`poll_armed_rings`](Self::poll_armed_rings).
    pub(crate) fn arm_rings(&mut self) -> Option<bool> {
        let (mut any, asymmetry) = (None, Asymmetry::of_process());
        for &end in &self.hot {
            if let Some(ring) = self
                .ends
                .get_mut(end)
                .and_then(|sender| sender.ring.as_mut())
            {
                ring.is_armed = true;
                any = any.max(Some(ring.arm.set(&ring.words.armed, asymmetry)));
            }
        }
        any
    }

    /// Keeps the armed rings hot that still have records for a peer; the others are cold now.
    /// Returns whether there are records to send.
    pub(super) fn poll_armed_rings(&mut self, session: &mut Session) -> bool {
        let senders = &mut self.ends;
        self.hot.retain(|&end| {
            let Some(sender) = senders.get_mut(end) else {
                return false;
            };
            let is_due = sender.has_records() && session.ends.mark_ready(end);
            let Some(ring) = sender.ring.as_mut() else {
                return false;
            };
            if is_due {
                ring.is_armed = false;
                ring.arm.disarm(&ring.words.armed);
            }
            is_due
        });
        !self.hot.is_empty()
    }

    /// Forgets an end that is gone on both sides.
    pub(super) fn forget(&mut self, end: u32, retained: &mut Retained) {
        self.hot.retain(|&hot| hot != end);
        if let Some(sender) = self.ends.remove(end) {
            self.gone += &sender.end.stats();
            retained.keep_sender(sender);
        }
    }
}

/// Returns the location of a frame's body.
#[inline]
pub(super) fn locate(senders: &IdMap<SenderState>, body: Body) -> Option<(NonNull<u8>, usize)> {
    match body {
        Body::Inline => None,
        Body::Records {
            end,
            position,
            bytes,
        } => {
            let ring = senders.get(end)?.ring.as_ref()?;
            Some((ring.at(position), bytes))
        }
        Body::Chunk { end, chunk }
        | Body::Write { end, chunk, .. }
        | Body::EagerBlock { end, chunk, .. } => {
            let large = senders.get(end)?.large_out(chunk.sequence)?;
            debug_assert!(chunk.offset as usize + chunk.bytes <= large.memory.length());
            // SAFETY: the chunk lies inside the message's memory.
            Some((
                unsafe { large.memory.base().add(chunk.offset as usize) },
                chunk.bytes,
            ))
        }
    }
}
