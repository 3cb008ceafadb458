//! A sending end in the engine: its ring, walked for records, and its large messages.

use std::{collections::VecDeque, ptr::NonNull, sync::Arc, time::Instant};

use ibex_protocol::{
    format::record::{self, LargeAnnouncement, Layout},
    id_map::IdMap,
    session::{Body, RecordSource, Run, Session},
    transfer::{eager_write::LandingId, rendezvous::Chunk},
};
use ibex_ring::{
    Arm, Consumer, Mapped, Released,
    end_status::{ReceiverWords, Words},
    memory::{LargeLease, RingLease},
};

use super::{core::Common, idle::SenderSilence, retained::Retained};
use crate::{
    endpoint::send_end::SendEnd,
    node::SessionShared,
    wire::{AnyWire, MessageMemory, RingMemory, Wire},
};

/// The sending ends of a session.
#[derive(Default)]
pub(crate) struct Senders {
    pub(super) ends: IdMap<SendLink>,
    /// Ends whose ring is looked at in every turn.
    pub(super) hot: Vec<u32>,
    /// The time until which a session that closes waits for handles that are inside.
    pub(super) leaving_until: Option<Instant>,
}

/// A sending end in the engine.
pub(super) struct SendLink {
    pub(super) end: Arc<SendEnd>,
    /// There while the channel is used, and small while it is not.
    pub(super) ring: Option<Box<AttachedRing>>,
    /// Large messages of which not every byte is in a frame.
    pub(super) large: VecDeque<LargeOut>,
    /// No handle publishes any more.
    pub(super) is_closed: bool,
    /// The node closes it, and has not said behind which message: a handle may be inside.
    pub(super) is_ending: bool,
    /// The last message that the peer was told of, where memory is shared.
    pub(super) ended_at: Option<u64>,
    /// The peer's words as they were when handles were last woken, where memory is shared.
    pub(super) seen: Option<(u64, u64, bool)>,
    /// The handles have a ring, which is wanted back when they are silent.
    pub(super) silence: Option<SenderSilence>,
}

pub(super) struct AttachedRing {
    pub(super) consumer: Consumer<Mapped>,
    pub(super) memory: RingMemory,
    words: Words<ReceiverWords>,
    arm: Arm,
    is_armed: bool,
}

pub(super) struct LargeOut {
    pub(super) sequence: u64,
    pub(super) memory: MessageMemory,
    /// All of it is in frames up to this one; it is kept until it has arrived, should these
    /// wires break.
    sent_in: Option<u64>,
}

impl SendLink {
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
        }
    }

    /// Says to a peer that reads the ring itself that the end is behind message `last`.
    pub(super) fn close_in_order(&mut self, last: u64, shared: &SessionShared) {
        if let Some(ours) = self.end.ours.get() {
            ours.close(last);
            self.ended_at = Some(last);
            shared.ring_peer();
        }
    }

    /// A chunk is in frame (or write) `until`, as [`in_flight`](crate::wire::Wire::in_flight) counts. With
    /// a message's last chunk its memory parts, unless it is `kept`.
    /// Returns whether it was that.
    pub(super) fn chunk_went(
        &mut self,
        chunk: Chunk,
        until: u64,
        kept: bool,
        retained: &mut Retained,
    ) -> bool {
        // One that has a block is not held up by one that waits for its grant.
        let is_last =
            |large: &LargeOut| large.sequence == chunk.sequence && large.memory.ends_with(chunk);
        let Some(index) = self.large.iter().position(is_last) else {
            return false;
        };
        if kept {
            self.large[index].sent_in = Some(until);
        } else if let Some(large) = self.large.remove(index) {
            retained.keep_message(self.end.clone(), large, until);
        }
        true
    }

    /// Messages up to `received` have arrived: what was kept of them parts. A peer may say so
    /// of one that is being sent; the session knows better.
    pub(super) fn large_arrived(
        &mut self,
        received: u64,
        session: &Session,
        retained: &mut Retained,
    ) -> bool {
        let mut any = false;
        while let Some(large) = self.large.pop_front() {
            if large.sequence > received || session.sends_large(self.end.id, large.sequence) {
                self.large.push_front(large);
                return any;
            }
            // Of one that arrived over wires that are gone, nothing is in frames.
            let until = large.sent_in.unwrap_or(0);
            retained.keep_message(self.end.clone(), large, until);
            any = true;
        }
        any
    }

    /// Has what has not arrived sent again, as the wire broke.
    pub(super) fn large_is_sent_again(&mut self) {
        for large in &mut self.large {
            large.sent_in = None;
        }
    }

    /// The ring and the large messages that it sends from.
    pub(super) fn memory(
        &mut self,
    ) -> (
        Option<&mut RingMemory>,
        impl Iterator<Item = &mut MessageMemory>,
    ) {
        let ring = self.ring.as_mut().map(|ring| &mut ring.memory);
        (ring, self.large.iter_mut().map(|large| &mut large.memory))
    }

    /// Takes records again from behind message `received`, which ends at ring position
    /// `position`. False if that cannot be.
    pub(super) fn replay(&mut self, received: u64, position: u64) -> bool {
        let Some(ring) = &mut self.ring else {
            return false;
        };
        ring.consumer.go_back(Released {
            messages: received,
            position,
        })
    }

    /// A large message of which not every byte is in a frame.
    pub(super) fn large_out(&self, sequence: u64) -> Option<&LargeOut> {
        self.large.iter().find(|large| large.sequence == sequence)
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

/// The findings of a look at the hot rings.
pub(super) struct Seen {
    /// There are records that can be sent, as far as is known.
    pub(super) is_sendable: bool,
    /// A large message waits for its grant, or to be sent.
    pub(super) has_large: bool,
}

/// The rings of a session's senders, as the session sees them.
pub(super) struct Rings<'a>(pub(super) &'a mut IdMap<SendLink>);

impl RecordSource for Rings<'_> {
    #[inline]
    fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run> {
        let ring = self.0.get_mut(end)?.ring.as_mut()?;
        // Our own process writes these rings, so a malformed record is a bug of ours.
        let run = ring
            .consumer
            .walk_frame(batch, single)
            .unwrap_or_else(|error| unreachable!("our own ring: {error}"));
        if run.records == 0 {
            return None;
        }
        let position = ring.consumer.position();
        ring.consumer.advance_by(run.bytes, run.records);
        Some(Run {
            position,
            bytes: run.bytes,
            records: run.records,
        })
    }

    #[inline]
    fn has_records(&mut self, end: u32) -> bool {
        self.0.get(end).is_some_and(SendLink::has_records)
    }

    #[cold]
    fn forget_block(&mut self, end: u32, position: u64) {
        let Some(ring) = self.0.get(end).and_then(|sender| sender.ring.as_ref()) else {
            return;
        };
        // SAFETY: the announcement's payload lies behind its header word, inside the windows.
        // It was published, so its handle writes there no more, and it is not released.
        let payload = unsafe {
            let payload = ring.at(position).add(record::HEADER_BYTES);
            payload
                .cast::<[u8; LargeAnnouncement::MAX_BYTES]>()
                .as_mut()
        };
        LargeAnnouncement::forget_block(payload);
    }
}

impl Senders {
    /// Takes over the ring that the handle of a sending end has made; messages `before` are
    /// released.
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
            memory: RingMemory::new(lease, &common.shared.carrier),
            words,
            arm: Arm::new(),
            is_armed: true,
        };
        // It begins cold: the first message rings.
        ring.arm.set(&ring.words.armed);
        sender.ring = Some(Box::new(ring));
        sender.silence = Some(SenderSilence::new());
    }

    /// Takes over a large message, which waits for its grant, or goes into the block that this
    /// gives.
    pub(super) fn take_large(
        &mut self,
        end: u32,
        sequence: u64,
        length: usize,
        memory: LargeLease,
        common: &mut Common,
    ) -> Option<LandingId> {
        let sender = self.ends.get_mut(end)?;
        sender.large.push_back(LargeOut {
            sequence,
            memory: MessageMemory::new(memory, length, &common.shared.carrier),
            sent_in: None,
        });
        common.session.announce_large(end, sequence, length as u64)
    }

    /// Notes that a cold ring has records: it is looked at in every turn from now on.
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

    /// Tells the session which hot rings have records that somebody wants.
    #[inline]
    pub(super) fn look_at_rings(&mut self, wire: &AnyWire, session: &mut Session) -> Seen {
        let (mut any, mut has_large) = (false, false);
        for &end in &self.hot {
            let Some(sender) = self.ends.get(end) else {
                continue;
            };
            has_large |= sender.large.iter().any(|large| large.sent_in.is_none());
            any |= sender.has_records() && session.mark_ready(end);
        }
        Seen {
            is_sendable: any && !wire.is_blocked(),
            has_large,
        }
    }

    /// Sets the armed words of all hot rings. A heavy barrier must follow, then
    /// [`look_at_armed_rings`](Self::look_at_armed_rings).
    pub(crate) fn arm_rings(&mut self) -> bool {
        let mut any = false;
        for &end in &self.hot {
            if let Some(ring) = self
                .ends
                .get_mut(end)
                .and_then(|sender| sender.ring.as_mut())
            {
                ring.is_armed = true;
                ring.arm.set(&ring.words.armed);
                any = true;
            }
        }
        any
    }

    /// Keeps the rings hot that have records for a peer after all; the others are cold now.
    /// Returns whether there are any to be sent.
    pub(super) fn look_at_armed_rings(&mut self, session: &mut Session) -> bool {
        let senders = &mut self.ends;
        self.hot.retain(|&end| {
            let Some(sender) = senders.get_mut(end) else {
                return false;
            };
            let is_due = sender.has_records() && session.mark_ready(end);
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
            retained.keep_sender(sender);
        }
    }
}

/// Returns where a frame's body lies.
#[inline]
pub(super) fn locate(senders: &IdMap<SendLink>, body: Body) -> Option<(NonNull<u8>, usize)> {
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
        | Body::Landing { end, chunk, .. } => {
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
