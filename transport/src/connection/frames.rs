//! The core of a session as its wire sees it.

use std::{ptr::NonNull, sync::Arc};

use ibex_protocol::{
    session::{Body, Session},
    transfer::rendezvous::Chunk,
};

use super::{
    context::Context,
    core::{Core, Phase},
    receivers::ReceiverState,
    senders::{Rings, locate},
};
#[cfg(any(test, feature = "verbs"))]
use crate::rdma::{RdmaPort, RegisteredMessage};
use crate::{
    session::{EndCause, SessionCounters},
    wire::{
        Arrived, FrameMemory, FrameRefusal, Frames, GrantedBlock, MessageMemory, SendRingMemory,
        Tools,
    },
};

/// A core during a turn.
pub(super) struct CoreInTurn<'a, 'b> {
    pub(super) core: &'a mut Core,
    pub(super) context: &'a mut Context<'b>,
}

impl Frames for CoreInTurn<'_, '_> {
    #[inline(always)]
    fn session(&mut self) -> &mut Session {
        &mut self.core.common.session
    }

    #[inline(always)]
    fn counters(&self) -> &SessionCounters {
        &self.core.common.shared.counters
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.core.has_to_pass()
    }

    #[inline(always)]
    fn is_over(&self) -> bool {
        self.core.common.phase == Phase::Gone
    }

    #[inline(always)]
    fn next(&mut self, arrival_offset: usize, head: &mut Vec<u8>) -> Option<Body> {
        let mut rings = Rings(&mut self.core.ends.senders.ends);
        self.core
            .common
            .session
            .poll_transmit(&mut rings, arrival_offset, head)
    }

    #[inline(always)]
    fn locate(&self, body: Body) -> Option<(NonNull<u8>, usize)> {
        locate(&self.core.ends.senders.ends, body)
    }

    #[cold]
    fn is_unreadable(&mut self, place: NonNull<u8>) -> Option<EndCause> {
        self.core.message_is_unreadable(place, self.context)
    }

    #[inline(always)]
    fn ring(&self, end: u32) -> Option<&SendRingMemory> {
        let ring = self.core.ends.senders.ends.get(end)?.ring.as_ref()?;
        Some(&ring.memory)
    }

    #[inline]
    fn message(&self, end: u32, sequence: u64) -> Option<&MessageMemory> {
        let large = self.core.ends.senders.ends.get(end)?.large_out(sequence)?;
        Some(&large.memory)
    }

    #[inline]
    fn went(&mut self, end: u32, chunk: Chunk, number: u64) -> bool {
        let is_kept = self.core.reconnect.is_some();
        let retained = &mut self.core.retained;
        let sender = self.core.ends.senders.ends.get_mut(end);
        sender.is_some_and(|sender| sender.chunk_went(chunk, number, is_kept, retained))
    }

    #[cfg(any(test, feature = "verbs"))]
    fn taken(&mut self, end: u32, whole: Chunk, number: u64) {
        self.went(end, whole, number);
        // The peer may have reported before that the message arrived.
        let (senders, session) = (&mut self.core.ends.senders, &self.core.common.session);
        if let Some(sender) = senders.ends.get_mut(end) {
            let received = session.ends.received(end);
            sender.large_arrived(received, session, &mut self.core.retained);
        }
    }

    #[inline]
    fn gone(&mut self, frame: u64) {
        if !self.core.retained.is_empty() {
            self.core.retained.free(frame, self.context);
        }
    }

    #[inline(always)]
    fn records<M: Into<FrameMemory>>(
        &mut self,
        end: u32,
        arrived: Arrived<M>,
        tools: &mut Tools,
    ) -> Result<(), FrameRefusal> {
        let core = &mut *self.core;
        let (receivers, counters) = (&mut core.ends.receivers, &core.common.shared.counters);
        receivers.place_records(end, arrived, tools, counters, &mut self.context.wakers)
    }

    #[inline]
    fn expects_chunk(&self) -> bool {
        let mut receivers = self.core.ends.receivers.ends.values();
        receivers.any(ReceiverState::expects_chunk)
    }

    fn has_receiver(&self, end: u32) -> bool {
        self.core.ends.receivers.ends.contains(end)
    }

    #[inline]
    fn place(&self, end: u32, sequence: u64, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let receiver = self.core.ends.receivers.ends.get(end)?;
        receiver.place_of(sequence, offset, bytes)
    }

    #[cfg(any(test, feature = "verbs"))]
    fn target(&self, end: u32, sequence: u64) -> Option<&Arc<RegisteredMessage>> {
        let receiver = self.core.ends.receivers.ends.get(end)?;
        receiver.target_of(sequence)
    }

    #[cfg(any(test, feature = "verbs"))]
    fn target_at(
        &self,
        end: u32,
        sequence: u64,
        rdma_port: &RdmaPort,
    ) -> Option<Arc<RegisteredMessage>> {
        let receiver = self.core.ends.receivers.ends.get(end)?;
        receiver.target_at(sequence, rdma_port)
    }

    fn block(&self, index: u16) -> Option<&Arc<GrantedBlock>> {
        self.core.grants.block(index)
    }

    fn chunk_moves(&mut self, end: u32, sequence: u64, until: u64) {
        let core = &mut *self.core;
        let receivers = &mut core.ends.receivers;
        receivers.large_moves(end, sequence, until, &mut core.common, self.context);
    }

    fn chunk_done(&mut self, end: u32, time: u64) {
        let core = &mut *self.core;
        let receivers = &mut core.ends.receivers;
        receivers.large_arrived(end, time, &mut core.common, self.context);
    }

    #[inline]
    fn blocks_done(&mut self, time: u64) {
        let core = &mut *self.core;
        let (grants, receivers) = (&core.grants, &core.ends.receivers);
        while let Some(landed) = core.common.session.eager_blocks.poll_landed() {
            let wakers = &mut self.context.wakers;
            grants.landed(landed, time, receivers, &core.common, wakers);
        }
    }

    #[inline]
    fn events(&mut self) {
        self.core.handle_events(self.context);
    }
}
