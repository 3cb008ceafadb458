//! The rails of a session: further queue pairs, on other device ports, over which pieces of large
//! messages are read, in both directions.
//!
//! Rules:
//!
//! 1. A rail is used when a read of its own has shown that it leads to the peer. An offer is bound on
//!    the wire first and goes out at once. The key to it on a rail follows when it is bound there.
//! 2. A rail that fails is moved to ERR, and destroyed when its last request is flushed, or when that
//!    is overdue. What was being read over it is then read again over the wire.
//! 3. The memory of a message stays until the peer can read it over no rail any more: its window there
//!    is invalidated, or the rail is destroyed.

use std::{mem, ops::Range, sync::Arc, time::Instant};

use ibex_verbs::{
    AsyncEvent, DEFAULT_DRAIN_TIMEOUT, QueuePair, QueuePairEvent, RemoteAddress, TargetEntry,
    WorkCompletion,
};

use super::pulling::{count_request, post_read};
use crate::{
    clock,
    rdma::{
        OfferWindows, PreparedRail, ProbeMemory, RAIL_REQUESTS, RdmaPort, RegisteredMessage,
        SendSlots, SessionPermit,
    },
    session::SessionCounters,
};

/// The rails of a session, by number.
pub(super) struct Rails(Vec<Option<Rail>>);

/// A further queue pair of a session.
pub(super) struct Rail {
    // Fields in drop order: the windows go after their queue pair.
    /// `None` once it is destroyed.
    pair: Option<QueuePair>,
    pub(super) windows: OfferWindows,
    slots: SendSlots,
    probe: Arc<ProbeMemory>,
    permit: SessionPermit,

    number: u32,
    /// The memory of the peer by which the rail is tested.
    their_probe: Option<RemoteAddress>,
    stage: RailStage,
    /// The first request that has failed, or would.
    failed_at: Option<u64>,
    /// The time by which the last request of a failed rail must be flushed.
    deadline: Option<Instant>,
    /// The session was not notified yet that the rail has failed.
    is_change: bool,
    /// Most reads of this end that are under way.
    depth: u32,
    /// Reads that are under way.
    pub(super) reads: u32,
}

/// The life of a rail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RailStage {
    /// Nothing was posted.
    New,
    /// The test is under way.
    Tested,
    /// The rail leads to the peer.
    Up,
    /// The queue pair is in ERR, or destroyed.
    Failed,
}

/// The state of a piece that is read over a rail.
pub(super) enum PieceState {
    UnderWay,
    Done,
    /// It is to be read again: the rail has failed, and writes to its memory no more.
    Lost,
}

impl Rails {
    pub(super) fn new(prepared: Vec<Option<PreparedRail>>) -> Self {
        Self(prepared.into_iter().map(|one| one.map(Rail::new)).collect())
    }

    #[inline]
    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, rail: u8) -> Option<&Rail> {
        self.0.get(usize::from(rail))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, rail: u8) -> Option<&mut Rail> {
        self.0.get_mut(usize::from(rail))?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, &Rail)> {
        let rails = self.0.iter().enumerate();
        rails.filter_map(|(at, rail)| Some((at as u8, rail.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Rail> {
        self.0.iter_mut().flatten()
    }

    /// Returns the rail whose queue pair has this number on this port.
    pub(super) fn find(&self, rdma_port: &Arc<RdmaPort>, number: u32) -> Option<u8> {
        let is_it = |rail: &Rail| {
            rail.pair.is_some()
                && rail.number == number
                && Arc::ptr_eq(&rail.permit.rdma_port, rdma_port)
        };
        self.iter().find(|(_, rail)| is_it(rail)).map(|(at, _)| at)
    }

    /// Returns the first moment, as the wire counts its requests, from which on the peer was to read a
    /// message no more that it may still read over a rail.
    #[inline]
    pub(super) fn earliest_revoked(&self) -> Option<u64> {
        let rails = self.0.iter().flatten();
        rails
            .filter_map(|rail| rail.windows.earliest_revoked())
            .min()
    }

    /// Returns whether no rail has a queue pair with requests that are not done.
    pub(super) fn are_idle(&self) -> bool {
        self.iter().all(|(_, rail)| rail.is_idle())
    }

    /// Returns the earliest time by which a failed rail must be drained.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let failed = self.iter().filter(|(_, rail)| rail.pair.is_some());
        failed.filter_map(|(_, rail)| rail.deadline).min()
    }

    /// Destroys the failed rails that are overdue at `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        for rail in self.iter_mut() {
            if rail.deadline.is_some_and(|deadline| deadline <= now) {
                rail.destroy("its requests are never flushed");
            }
        }
    }

    /// Returns the ports of rails that have failed since the last call.
    pub(super) fn take_failed(&mut self) -> Vec<Arc<RdmaPort>> {
        let failed = self.iter_mut().filter_map(|rail| {
            mem::take(&mut rail.is_change).then(|| rail.permit.rdma_port.clone())
        });
        failed.collect()
    }

    /// Destroys all rails.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Rail {
    fn new(prepared: PreparedRail) -> Self {
        let (their_probe, depth) = (prepared.their_probe(), prepared.read_depth());
        let PreparedRail {
            pair,
            windows,
            probe,
            permit,
            ..
        } = prepared;
        Self {
            number: pair.number(),
            pair: Some(pair),
            windows,
            slots: SendSlots::new(RAIL_REQUESTS, 0),
            probe,
            permit,
            their_probe,
            stage: RailStage::New,
            failed_at: None,
            deadline: None,
            is_change: false,
            depth,
            reads: 0,
        }
    }

    /// Returns the rail's RDMA port.
    pub(super) fn rdma_port(&self) -> &Arc<RdmaPort> {
        &self.permit.rdma_port
    }

    /// Returns the number of the rail's queue pair.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    fn is_idle(&self) -> bool {
        self.pair.is_none() || self.slots.in_flight().is_none()
    }

    /// Returns whether another piece may be read over the rail.
    pub(super) fn may_read(&self) -> bool {
        self.stage == RailStage::Up && self.reads < self.depth && self.has_room()
    }

    fn has_room(&self) -> bool {
        let has_room = |pair: &QueuePair| self.slots.room() > 0 && pair.send_room() > 0;
        self.pair.as_ref().is_some_and(has_room)
    }

    /// Begins to test the rail, unless that has begun. Nothing may be sent before the peer is known to
    /// have connected its end.
    pub(super) fn begin(&mut self, counters: &SessionCounters) {
        if self.stage != RailStage::New {
            return;
        }
        self.stage = RailStage::Tested;
        let probe = self.probe.clone();
        if let Some(from) = self.their_probe {
            self.post_read(probe.target(), from, counters);
        }
    }

    /// Posts a read. A rail that refuses it fails.
    fn post_read(
        &mut self,
        target: TargetEntry<'_>,
        from: RemoteAddress,
        counters: &SessionCounters,
    ) {
        let Some(pair) = &mut self.pair else {
            return;
        };
        let posted = post_read(pair, &mut self.slots, target, from);
        count_request(counters);
        if let Err(refused) = posted {
            // The request was not posted, and its completion will not come.
            self.destroy(&refused.to_string());
        }
    }

    /// Reads a piece into `range` of its target. Returns the request's number.
    pub(super) fn read(
        &mut self,
        target: &RegisteredMessage,
        range: Range<usize>,
        from: RemoteAddress,
        counters: &SessionCounters,
    ) -> u64 {
        self.reads += 1;
        self.post_read(target.target(range), from, counters);
        self.slots.posted()
    }

    /// Lets the peer read a message over the rail too, if it may be used and has a window.
    pub(super) fn bind(
        &mut self,
        message: (u32, u64),
        place: (&RegisteredMessage, Range<usize>),
        counters: &SessionCounters,
    ) {
        let is_up = self.stage == RailStage::Up && self.has_room();
        let Some(pair) = self.pair.as_mut().filter(|_| is_up) else {
            return;
        };
        let id = self.slots.next_id();
        if self.windows.bind(pair, id, message, place).is_some() {
            self.slots.post(self.slots.staged());
            count_request(counters);
        }
    }

    /// Lets the peer read a message over the rail no more. `at` is the wire's last request.
    pub(super) fn revoke(&mut self, message: (u32, u64), at: u64, counters: &SessionCounters) {
        let id = self.slots.next_id();
        let is_live = self.stage != RailStage::Failed;
        let live = self
            .pair
            .as_mut()
            .filter(|_| is_live)
            .map(|pair| (pair, id));
        match self.windows.revoke_at(live, message, at) {
            Ok(false) => {}
            Ok(true) => {
                self.slots.post(self.slots.staged());
                count_request(counters);
            }
            Err(refused) => self.fail(&refused.to_string()),
        }
    }

    /// Takes in a completion. Returns the message that the peer may read over the rail from now on,
    /// with its key, if there is one.
    pub(super) fn complete(&mut self, completion: &WorkCompletion) -> Option<((u32, u64), u32)> {
        let bound = self.windows.note(completion);
        let done = self.slots.complete(completion.id())?;
        match completion.outcome() {
            Ok(_) => {
                if let Some(pair) = &mut self.pair {
                    pair.retire_sends(done);
                }
                if self.stage == RailStage::Tested {
                    self.stage = RailStage::Up;
                    let device = self.permit.rdma_port.device();
                    tracing::debug!(device, "a rail leads to the peer");
                }
            }
            Err(failure) => {
                self.failed_at.get_or_insert(self.slots.done());
                self.fail(&failure.to_string());
            }
        }
        if self.stage == RailStage::Failed && self.slots.in_flight().is_none() {
            self.pair = None;
            self.windows.clear();
        }
        bound.filter(|_| self.stage == RailStage::Up)
    }

    /// Takes in an event of the device about the rail's queue pair.
    pub(super) fn event(&mut self, event: &AsyncEvent) {
        if let AsyncEvent::QueuePair(
            _,
            QueuePairEvent::Fatal
            | QueuePairEvent::InvalidRequest
            | QueuePairEvent::AccessViolation
            | QueuePairEvent::LastRequestReached,
        ) = event
        {
            self.fail(&event.to_string());
        }
    }

    /// Uses the rail no more. It is destroyed when its last request is flushed.
    pub(super) fn fail(&mut self, why: &str) {
        if self.stage == RailStage::Failed {
            return;
        }
        let device = self.permit.rdma_port.device();
        match self.stage {
            RailStage::Up => ibex_base::warn_limited!(
                why,
                device,
                why,
                "a rail has failed; the session goes on without it"
            ),
            RailStage::Tested => tracing::info!(device, why, "a rail does not lead to the peer"),
            RailStage::New | RailStage::Failed => {}
        }
        self.stage = RailStage::Failed;
        self.is_change = true;
        self.deadline = Some(clock::now() + DEFAULT_DRAIN_TIMEOUT);
        self.failed_at.get_or_insert(self.slots.done() + 1);
        let failed = self.pair.as_mut().map(QueuePair::fail);
        if self.slots.in_flight().is_none() || matches!(failed, Some(Err(_))) {
            self.pair = None;
            self.windows.clear();
        }
    }

    /// Uses the rail no more, because the wire is ended.
    pub(super) fn leave(&mut self) {
        if self.stage != RailStage::Failed {
            self.stage = RailStage::New;
            self.fail("the session leaves its queue pairs");
        }
    }

    /// Destroys the rail at once, because its requests will not complete any more.
    pub(super) fn destroy(&mut self, why: &str) {
        self.fail(why);
        self.pair = None;
        self.windows.clear();
    }

    /// Returns the state of the piece that request `number` reads.
    pub(super) fn state_of(&self, number: u64) -> PieceState {
        let is_past = number <= self.slots.done();
        match self.failed_at {
            Some(failed) if number >= failed => match self.pair.is_none() || is_past {
                true => PieceState::Lost,
                false => PieceState::UnderWay,
            },
            _ if is_past => PieceState::Done,
            _ => PieceState::UnderWay,
        }
    }

    /// Returns the time of a completion, in nanoseconds since 1970; 0 if it is unknown.
    pub(super) fn time_of(&self, completion: &WorkCompletion) -> u64 {
        match self.permit.rdma_port.polling().times {
            true => completion.time(),
            false => 0,
        }
    }
}
