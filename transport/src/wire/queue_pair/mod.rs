//! Frames over a queue pair: each is one SEND into one of the peer's receive buffers.
//!
//! Rules:
//!
//! 1. A frame is taken out of the session only when there is a place for it in the send queue and
//!    for its head in the head slab. So each taken frame is posted. A full queue leaves the rest in
//!    the rings, which is the back-pressure.
//! 2. A short frame goes inline, and its bytes are free when it is posted. The head of a longer
//!    frame is staged in registered memory; records stay in their ring and chunks in their message,
//!    and the device reads them there.
//! 3. Memory that a device may still read stays registered. Rings and messages whose owner is done
//!    with them are freed when the requests that were posted before are done. Bytes of a ring may
//!    be written again earlier, when the peer has released them. The peer has received the bytes
//!    then: if the local device repeats a packet whose acknowledgement was lost, the peer's device
//!    drops it by its sequence number, regardless of its content.
//! 4. If the peer granted memory for a large message, the message is sent as writes into that
//!    memory, followed by a frame. Granted memory belongs to the peer until that frame arrives, or
//!    until the sending end is gone: both are ordered after all of its writes. If neither happens,
//!    the memory is not used again. Once the queue pair is destroyed, the memory is deregistered,
//!    which blocks late writes, and unmapped.
//! 5. A block that was granted ahead belongs to the peer too. The exception is the time from the
//!    announcement of a message in it until the peer is notified that this message is released.
//! 6. A message that the peer reads is the peer's to read from when its window is bound until the
//!    request that invalidates the window is done, or the queue pair is destroyed. Its memory is kept
//!    as long. Memory that this
//!    end reads into is the device's until the read is done, or the queue pair is destroyed. The same
//!    holds for each rail, and memory is free when it is free of all of them.
//! 7. A queue pair is never just destroyed: it is moved to ERR, and the frames that arrived until
//!    then are handed on before the wire ends and before the queue pair is destroyed.

mod beside;
mod events;
mod pulling;
mod rails;
mod receive;
mod send;

use std::{any::Any, fmt::Display, io, mem, sync::Arc, time::Instant};

use ibex_protocol::session::{Session, WireTerms};
use ibex_ring::memory::MemoryError;
use ibex_verbs::{AsyncEvent, DEFAULT_DRAIN_TIMEOUT, PortState, QueuePair, Teardown, Verdict};

use super::{
    AnyWire, EventOutcome, Frames, LastWord, MessageMemory, Received, SendRingMemory, Shut, Tools,
    Wire, WireEvent, WireSocket, register_with, stream::Layer,
};
use crate::{
    rdma::{ArrivalBuffers, DrainGuard, PreparedPair, RdmaPort, SessionPermit},
    session::{EndCause, SessionCounters},
};
use beside::Beside;
use pulling::Pulling;
use send::PairSending;

/// The queue pair of one session as its wire.
pub(crate) struct QueuePairWire {
    // Fields in drop order.
    state: PairState,
    pulling: Pulling,
    /// The buffers of the queue pair's own receive queue, if it shares none.
    own: Option<ArrivalBuffers>,
    sending: PairSending,
    permit: SessionPermit,
    beside: Beside,

    // Identity and state.
    number: u32,
    /// Completions have times.
    has_times: bool,
    /// The event by which the device reported that the queue pair died, before its completions
    /// showed it.
    died: Option<AsyncEvent>,
    /// The port's fault, which may be the reason if the queue pair dies.
    doubt: Option<Arc<str>>,
    /// Registration for the RDMA port's report that the completion queue is empty.
    drain_guard: Option<DrainGuard>,
}

/// The life of a queue pair.
#[allow(
    clippy::large_enum_variant,
    reason = "a pair is boxed as a whole, and posting follows no second pointer"
)]
enum PairState {
    Live(QueuePair),
    Leaving(Box<Teardown>),
    /// The queue pair is destroyed and reports nothing any more.
    Gone,
}

impl QueuePairWire {
    /// Takes over a connected queue pair. Bytes of the connection beside it go through `layer`,
    /// except for `leftover`, which arrived after the handshake.
    pub(super) fn new(prepared: PreparedPair, layer: Layer, leftover: &[u8]) -> Self {
        let frame_bytes = prepared.carriage().frame_bytes();
        let max_entries = prepared.endpoint().max_send_entries.into();
        let depth = prepared.reads().depth.into();
        let PreparedPair {
            pair,
            own,
            heads,
            permit,
            windows,
            rails,
            ..
        } = prepared;
        Self {
            number: pair.number(),
            has_times: permit.rdma_port.polling().times,
            died: None,
            doubt: None,
            drain_guard: None,
            sending: PairSending::new(
                permit.rdma_port.send_requests(),
                &pair,
                max_entries,
                heads,
                frame_bytes,
            ),
            state: PairState::Live(pair),
            pulling: Pulling::new(windows, rails, depth),
            own,
            permit,
            beside: Beside::new(layer, leftover),
        }
    }

    /// Returns the terms of frames over a connected queue pair.
    pub(super) fn terms(prepared: &PreparedPair) -> io::Result<WireTerms> {
        let Some(peer_credit) = prepared.peer_credit() else {
            return Err(io::Error::other(
                "the queue pair of the session was never connected to the peer's",
            ));
        };
        Ok(WireTerms {
            carriage: prepared.carriage(),
            our_credit: prepared.endpoint().credit.into(),
            peer_credit: peer_credit.into(),
            writes: true,
            immediate: prepared.immediate(),
            offers: prepared.reads().resources > 0,
            reads: prepared.most_reads(),
        })
    }

    /// Returns whether the queue pair may send, because it is not being ended.
    #[inline]
    fn is_live(&self) -> bool {
        matches!(self.state, PairState::Live(_))
    }

    /// Returns the port's present fault, if it has one.
    fn doubt_of_port(&self) -> Option<Arc<str>> {
        match self.permit.rdma_port.port_state() {
            Ok(PortState::Active) => None,
            Ok(state) => Some(
                self.permit
                    .rdma_port
                    .of_port(&format!("it is {state}"))
                    .into(),
            ),
            Err(error) => Some(error.to_string().into()),
        }
    }

    /// Returns whether the queue pair is being ended with windows that are bound, or might be. They
    /// stay until it is destroyed, which ends the peer's right to read whatever becomes of them.
    fn has_open_windows(&self) -> bool {
        matches!(self.state, PairState::Leaving(_)) && !self.pulling.windows.are_free()
    }

    /// Returns the last request whose bytes are not needed any more, by the wire or by a rail.
    #[inline]
    fn freed(&self) -> u64 {
        let done = self.sending.slots.done();
        match self.pulling.rails.earliest_revoked() {
            Some(at) => done.min(at.saturating_sub(1)),
            None => done,
        }
    }

    /// Returns whether the queue pair lives and the device has not reported its death.
    #[inline]
    fn is_settled(&self) -> bool {
        self.is_live() && self.died.is_none()
    }
}

// ---- The wire -----------------------------------------------------------------------------------

impl AnyWire {
    /// Returns the device port of the queue pair, and the queue pair's number.
    pub(crate) fn pair_at(&self) -> Option<(&Arc<RdmaPort>, u32)> {
        match self {
            AnyWire::QueuePair(pair) => Some(pair.place()),
            _ => None,
        }
    }

    /// Returns the device ports of the wire's rails, and the numbers of their queue pairs there.
    pub(crate) fn rails_at(&self) -> Vec<(Arc<RdmaPort>, u32)> {
        match self {
            AnyWire::QueuePair(pair) => {
                let rails = pair.pulling.rails.iter();
                rails
                    .map(|(_, rail)| (rail.rdma_port().clone(), rail.number()))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether the wire has a rail with this queue pair that is not destroyed.
    pub(crate) fn has_rail(&self, rdma_port: &Arc<RdmaPort>, number: u32) -> bool {
        match self {
            AnyWire::QueuePair(pair) => pair.pulling.rails.find(rdma_port, number).is_some(),
            _ => false,
        }
    }

    /// Returns the ports of rails that have failed since the last call, and the time by which failed
    /// rails must be drained.
    pub(crate) fn failed_rails(&mut self) -> (Vec<Arc<RdmaPort>>, Option<Instant>) {
        match self {
            AnyWire::QueuePair(pair) if !pair.pulling.rails.are_none() && pair.is_live() => {
                let rails = &mut pair.pulling.rails;
                (rails.take_failed(), rails.deadline())
            }
            _ => (Vec::new(), None),
        }
    }

    /// Uses the rail with this queue pair no more, because of its port.
    pub(crate) fn fail_rail(&mut self, rdma_port: &Arc<RdmaPort>, number: u32, why: &str) {
        if let AnyWire::QueuePair(pair) = self
            && let Some(rail) = pair.pulling.rails.find(rdma_port, number)
            && let Some(rail) = pair.pulling.rails.get_mut(rail)
        {
            rail.fail(why);
        }
    }

    /// Notes a fault of the queue pair's port, or that it has none any more.
    pub(crate) fn doubt_port(&mut self, doubt: Option<Arc<str>>) {
        if let AnyWire::QueuePair(pair) = self {
            pair.doubt_port(doubt);
        }
    }
}

impl Wire for QueuePairWire {
    #[inline(always)]
    fn send_lone(
        &mut self,
        end: u32,
        record: &[u8],
        session: &mut Session,
        counters: &SessionCounters,
        _tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        let posted = self.post_lone_record(end, record, session, counters);
        posted.map_err(|refused| device_refused(&refused))
    }

    fn transmit<F: Frames>(
        &mut self,
        _socket: &WireSocket,
        frames: &mut F,
        _tools: &mut Tools,
    ) -> Result<bool, EndCause> {
        let mut progress = false;
        loop {
            let pulled = self.pull(frames)?;
            let posted = self.post_frames(frames);
            let posted = posted.map_err(|refused| device_refused(&refused))?;
            progress |= pulled | posted;
            // What was announced is offered at once, if there is room.
            if !(pulled | posted) || !frames.session().ends.has_offers() {
                return Ok(progress);
            }
        }
    }

    /// Reads the connection beside the queue pair, which shows that the peer lives, or has given
    /// the session up. Frames arrive as events of the device.
    fn receive<F: Frames>(
        &mut self,
        socket: &mut WireSocket,
        _frames: &mut F,
        _tools: &mut Tools,
    ) -> Received {
        match mem::take(&mut socket.readable) {
            true => self.beside.listen(socket.stream()),
            false => Received::Nothing,
        }
    }

    fn say_last_word(&mut self, socket: &WireSocket, word: LastWord) {
        self.beside.say_last_word(socket.stream(), word);
    }

    fn hear_last_word(&mut self, socket: &WireSocket) -> Received {
        self.beside.listen(socket.stream())
    }

    #[inline(always)]
    fn hear<F: Frames>(
        &mut self,
        event: WireEvent<'_>,
        frames: &mut F,
        tools: &mut Tools,
    ) -> EventOutcome {
        match event {
            WireEvent::Completed(completion, shared) => {
                self.complete(completion, shared, frames, tools)
            }
            WireEvent::Said(event) => self.event(event),
            WireEvent::Empty => self.completions_are_empty(),
            WireEvent::RailsOverdue(now) => self.expire_rails(now, frames),
            WireEvent::OfRail(rdma_port, number, event) => {
                match self.pulling.rails.find(rdma_port, number) {
                    Some(rail) => self.rail_reported(rail, event, frames),
                    None => EventOutcome::Stray,
                }
            }
        }
    }

    fn in_flight(&self) -> Option<u64> {
        match self.state {
            // Flushed requests need no memory any more.
            PairState::Gone => None,
            _ => {
                let slots = &self.sending.slots;
                let on_rails = || {
                    self.pulling
                        .rails
                        .earliest_revoked()
                        .map(|_| slots.posted())
                };
                slots.in_flight().or_else(on_rails)
            }
        }
    }

    fn done(&self) -> u64 {
        match self.in_flight() {
            // Of requests that were flushed, some may have been to invalidate windows.
            _ if self.has_open_windows() => 0,
            Some(_) => self.freed(),
            None => u64::MAX,
        }
    }

    fn revoke_offers(
        &mut self,
        is_out: impl Fn(u32, u64) -> bool,
        counters: &SessionCounters,
    ) -> Result<bool, EndCause> {
        self.revoke_stale(is_out, counters)
    }

    fn owes_requests(&self) -> bool {
        self.pulling.has_lost()
    }

    fn is_blocked(&self) -> bool {
        self.sending.is_blocked || !self.is_live()
    }

    fn belongs_to_port(&self) -> bool {
        true
    }

    #[inline]
    fn is_event_driven(&self) -> bool {
        self.is_settled()
    }

    fn register<'a>(
        &self,
        ring: Option<&mut SendRingMemory>,
        messages: impl Iterator<Item = &'a mut MessageMemory>,
        leftovers: &mut Vec<Box<dyn Any>>,
    ) -> Result<(), MemoryError> {
        register_with(&self.permit.rdma_port, ring, messages, leftovers)
    }

    /// Moves the queue pair to ERR; completions are taken in until it is drained.
    fn shut(&mut self, now: Instant, session: u64) -> Option<Instant> {
        match mem::replace(&mut self.state, PairState::Gone) {
            PairState::Live(queue_pair) => {
                // Queue pair numbers are reused; session numbers are not.
                let generation = session as u32;
                let timeout = DEFAULT_DRAIN_TIMEOUT;
                let mut teardown = Teardown::begin(queue_pair, generation, now, timeout);
                if let Some(event) = &self.died {
                    teardown.handle_event(event);
                }
                let deadline = teardown.deadline();
                self.drain_guard = Some(self.permit.rdma_port.leaves());
                self.state = PairState::Leaving(Box::new(teardown));
                for rail in self.pulling.rails.iter_mut() {
                    rail.leave();
                }
                Some(deadline)
            }
            state => {
                self.state = state;
                None
            }
        }
    }

    fn poll_shut(&mut self, now: Instant) -> Shut {
        let PairState::Leaving(teardown) = &self.state else {
            return Shut::No;
        };
        match teardown.verdict(now) {
            Verdict::Draining => Shut::Draining,
            Verdict::Drained if now < teardown.deadline() && !self.pulling.rails.are_idle() => {
                Shut::Draining
            }
            Verdict::Drained => {
                self.permit.was_drained();
                Shut::Done { gave_up: None }
            }
            Verdict::GaveUp(reason) => Shut::Done {
                gave_up: Some(reason),
            },
        }
    }

    fn destroy(&mut self) {
        self.state = PairState::Gone;
        self.pulling.clear();
        self.permit.give_back();
        self.drain_guard = None;
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, PairState::Gone)
    }
}

/// Returns the cause that ends a wire whose device refuses requests.
fn device_refused(refused: &impl Display) -> EndCause {
    let why = refused.to_string();
    EndCause::DeviceLost { why }
}
