//! The sending half of a link: rings are walked, frames built, batches written.

use std::{
    collections::{BTreeMap, VecDeque},
    ptr::NonNull,
    sync::Arc,
};

use super::{Link, Phase};
use crate::{
    channel::{
        send_end::SendEnd,
        words::{ReceiverWords, Words},
    },
    driver::Context,
    engine::{
        record::Layout,
        session::{Body, RecordSource, Run},
    },
    memory::{LargeLease, RingLease},
    ring::{Arm, Consumer, Mapped},
};

/// One sending end in the engine.
pub(super) struct SendLink {
    pub(super) end: Arc<SendEnd>,
    ring: Option<AttachedRing>,
    /// Large messages that the peer has not received whole.
    large: VecDeque<LargeOut>,
    /// No handle publishes any more.
    pub(super) is_closed: bool,
    /// What the peer's words said when handles were last woken (shm).
    pub(super) seen: Option<(u64, u64, bool)>,
}

struct AttachedRing {
    consumer: Consumer<Mapped>,
    /// Keeps the ring until nothing of it waits to be written.
    lease: Arc<RingLease>,
    words: Words<ReceiverWords>,
    arm: Arm,
    is_armed: bool,
}

struct LargeOut {
    sequence: u64,
    length: usize,
    memory: LargeLease,
}

impl SendLink {
    pub(super) fn new(end: Arc<SendEnd>) -> Self {
        Self {
            end,
            ring: None,
            large: VecDeque::new(),
            is_closed: false,
            seen: None,
        }
    }

    /// The peer holds everything up to `received`.
    pub(super) fn forget_large(&mut self, received: u64) {
        while self
            .large
            .front()
            .is_some_and(|large| large.sequence <= received)
        {
            self.large.pop_front();
        }
    }

    fn has_records(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| !ring.consumer.is_empty())
    }
}

/// The rings of a link's senders, as the session sees them.
struct Rings<'a>(&'a mut BTreeMap<u32, SendLink>);

impl RecordSource for Rings<'_> {
    fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run> {
        let ring = self.0.get_mut(&end)?.ring.as_mut()?;
        // Our own process writes these rings, so a malformed record is a bug of ours.
        let walk = |limit| {
            ring.consumer
                .walk(limit)
                .unwrap_or_else(|error| unreachable!("our own ring: {error}"))
        };
        let mut run = walk(batch);
        if run.records == 0 {
            run = walk(single);
        }
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

    fn has_records(&mut self, end: u32) -> bool {
        self.0.get(&end).is_some_and(SendLink::has_records)
    }
}

impl Link {
    /// The handle of a sending end has made its ring.
    pub(crate) fn attach_ring(&mut self, end: u32, lease: Arc<RingLease>, layout: Layout) {
        let Some(sender) = self.senders.get_mut(&end) else {
            return;
        };
        let Some(words) = sender.end.theirs.get().cloned() else {
            return;
        };
        // SAFETY: a double mapping of `capacity` bytes, kept by the lease beside it.
        let mapped = unsafe { Mapped::new(lease.base(), lease.capacity()) };
        let consumer = Consumer::new(mapped, layout);
        let mut ring = AttachedRing {
            consumer,
            lease,
            words,
            arm: Arm::new(),
            is_armed: true,
        };
        // It begins cold: the first message rings.
        ring.arm.set(&ring.words.armed);
        sender.ring = Some(ring);
    }

    /// A large message waits for its grant.
    pub(crate) fn send_large(
        &mut self,
        end: u32,
        sequence: u64,
        length: usize,
        memory: LargeLease,
    ) {
        if let Some(sender) = self.senders.get_mut(&end) {
            sender.large.push_back(LargeOut {
                sequence,
                length,
                memory,
            });
            self.session.announce_large(end, sequence, length as u64);
        }
    }

    /// A cold ring has records: it is looked at in every turn from now on.
    pub(crate) fn ring_is_ready(&mut self, end: u32) {
        if let Some(ring) = self
            .senders
            .get_mut(&end)
            .and_then(|sender| sender.ring.as_mut())
            && ring.is_armed
        {
            ring.is_armed = false;
            ring.arm.disarm(&ring.words.armed);
            self.hot_rings.push(end);
        }
    }

    /// Tells the session which hot rings have records.
    pub(super) fn look_at_rings(&mut self) -> bool {
        let mut any = false;
        for &end in &self.hot_rings {
            if self.senders.get(&end).is_some_and(SendLink::has_records) {
                self.session.mark_ready(end);
                any = true;
            }
        }
        any
    }

    /// Sets the armed words of all hot rings. A heavy barrier must follow, then
    /// [`look_at_armed_rings`](Self::look_at_armed_rings).
    pub(crate) fn arm_rings(&mut self) -> bool {
        let mut any = false;
        for end in &self.hot_rings {
            if let Some(ring) = self
                .senders
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

    /// Keeps the rings hot that have records after all; the others are cold now.
    pub(crate) fn look_at_armed_rings(&mut self) -> bool {
        let senders = &mut self.senders;
        let session = &mut self.session;
        self.hot_rings.retain(|end| {
            let Some(sender) = senders.get_mut(end) else {
                return false;
            };
            let has_records = sender.has_records();
            let Some(ring) = sender.ring.as_mut() else {
                return false;
            };
            if has_records {
                ring.is_armed = false;
                ring.arm.disarm(&ring.words.armed);
                session.mark_ready(*end);
            }
            has_records
        });
        !self.hot_rings.is_empty()
    }

    /// Builds frames and writes them until nothing is due or the socket is full.
    pub(super) fn transmit(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        if self.phase == Phase::Gone || self.broken.is_some() {
            return false;
        }
        loop {
            if !self.outbound.is_empty() {
                match self.outbound.write(&mut self.layer, &self.tcp) {
                    Ok((bytes, calls)) => {
                        let counters = &self.shared.counters;
                        counters.bytes_sent.add(bytes as u64);
                        counters.writes.add(calls);
                        progress |= bytes > 0;
                    }
                    Err(error) => {
                        // What arrived before the link broke is still to be read.
                        let why = format!("writing to its connection failed: {error}");
                        self.drain_then_fail(&why);
                        return progress;
                    }
                }
                if !self.outbound.is_empty() {
                    return progress;
                }
                self.parting_rings.clear();
            }
            if !self.session.is_due() || !self.build_batch() {
                break;
            }
        }
        self.finish_if_said(context);
        progress
    }

    /// The next batch; false if nothing is due.
    fn build_batch(&mut self) -> bool {
        let mut frames = 0;
        while !self.outbound.is_full() {
            let landing = self.outbound.landing();
            let mut rings = Rings(&mut self.senders);
            let heads = &mut self.outbound.heads;
            let Some(body) = self.session.poll_transmit(&mut rings, landing, heads) else {
                break;
            };
            let body = self.locate(body);
            // SAFETY: ring bytes stay until the peer has released them, which it cannot
            // before they are sent; large messages until it has received them; rings of
            // ends that are gone are kept in `parting_rings` until the batch is written.
            unsafe { self.outbound.push(body) };
            frames += 1;
        }
        self.shared.counters.frames_sent.add(frames);
        if frames == 0 && self.session.is_out_of_credit() {
            self.shared.counters.credit_stalls.add(1);
        }
        frames > 0
    }

    /// Where a frame's body lies.
    fn locate(&self, body: Body) -> Option<(NonNull<u8>, usize)> {
        match body {
            Body::Inline => None,
            Body::Records {
                end,
                position,
                bytes,
            } => {
                let ring = self.senders.get(&end)?.ring.as_ref()?;
                let offset = position as usize & (ring.lease.capacity() - 1);
                // SAFETY: the offset is inside the first of the two windows.
                Some((unsafe { ring.lease.base().add(offset) }, bytes))
            }
            Body::Chunk { end, chunk } => {
                let sender = self.senders.get(&end)?;
                let large = sender
                    .large
                    .iter()
                    .find(|large| large.sequence == chunk.sequence)?;
                debug_assert!(chunk.offset as usize + chunk.bytes <= large.length);
                // SAFETY: the chunk lies inside the message's memory.
                Some((
                    unsafe { large.memory.base().add(chunk.offset as usize) },
                    chunk.bytes,
                ))
            }
        }
    }

    /// An end is gone on both sides.
    pub(super) fn forget_sender(&mut self, end: u32) {
        self.hot_rings.retain(|&hot| hot != end);
        if let Some(sender) = self.senders.remove(&end)
            && !self.outbound.is_empty()
        {
            self.parting_rings.push(sender);
        }
    }
}
