//! Frames over a queue pair: each is one SEND into one of the peer's receive buffers.
//!
//! Rules:
//!
//! 1. A frame is taken out of the session only when the send queue has a place for it and
//!    the head slab has one for its head, so what is taken is posted. A full queue leaves
//!    the rest in the rings: that is the back-pressure.
//! 2. A short frame goes inline, and its bytes are free when it is posted. Of another the
//!    head is staged in registered memory; records stay in their ring and chunks in their
//!    message, and the device reads them there.
//! 3. What a device may still read stays registered: rings and messages whose owner is
//!    done with them part when the requests that were posted before are done. Bytes of a
//!    ring may be written again earlier, when the peer has released them: it has them
//!    then, and if our device repeats a packet whose acknowledgement was lost, the peer's
//!    drops it by its number, whatever it carries.
//! 4. A large message goes as writes into memory that the peer granted for it, if it did,
//!    and a frame behind them. Memory that we granted is the peer's until that frame comes,
//!    or the end that sends is gone: both come behind all its writes. If neither comes, the
//!    memory is used for nothing more. Once the queue pair is destroyed it is deregistered,
//!    which lets no write in that is late, and unmapped.
//! 5. A block that was granted ahead is the peer's likewise, but for the time from when a
//!    message is announced in it until the peer is told that this is released.
//! 6. A queue pair never just goes: it is moved to ERR, and what arrived until then is
//!    handed on before the link ends and before it is destroyed.

use std::{io, mem, sync::Arc, time::Instant};

use ibex_protocol::{session::WireTerms, timer::Timer};
use ibex_ring::memory::LargeLease;
use ibex_verbs::{
    AsyncEvent, CompletionFailure, DEFAULT_DRAIN_TIMEOUT, Fault, PortState, QueuePair,
    QueuePairEvent, Teardown, Verdict,
};

use super::{
    Link, Phase, Wires, grants::Landings, queue_pair_send::PairSending, receivers::ReceiveLink,
};
use crate::{
    clock,
    connection::{Context, MemoryWanted, Purpose, Tools},
    rdma::{ArrivalBuffers, Leaver, PreparedPair, Seat, Site},
    session::EndCause,
};

/// The queue pair of one link.
pub(super) struct Pair {
    // In the order in which they go.
    pub(super) state: PairState,
    /// The buffers of its own receive queue, where it shares none.
    pub(super) own: Option<ArrivalBuffers>,
    pub(super) sending: PairSending,
    /// Memory that the peer was granted for a message that nobody wants any more, by the
    /// receiving end: the peer may be writing there.
    limbo: Vec<(u32, LargeLease)>,
    /// Blocks that the peer was granted ahead.
    pub(super) landings: Landings,
    seat: Seat,

    // Who it is and how it is.
    number: u32,
    /// Its completions have times.
    pub(super) has_times: bool,
    /// The device said that it died, before we knew.
    died: Option<AsyncEvent>,
    /// What is wrong with its port, which it may die of.
    doubt: Option<Arc<str>>,
    /// The site tells it that the completion queue is empty.
    leaver: Option<Leaver>,
    /// Its peer broke the protocol: the session does not go on over other wires.
    is_refused: bool,
    /// The peer has left the connection beside it.
    pub(super) is_left: bool,
}

/// How far a queue pair is on its way out.
#[allow(
    clippy::large_enum_variant,
    reason = "a pair is boxed as a whole, and posting follows no second pointer"
)]
pub(super) enum PairState {
    Live(QueuePair),
    Leaving(Box<Teardown>),
    /// Destroyed; nothing of it comes any more.
    Gone,
}

impl Pair {
    /// Takes over a connected queue pair.
    pub(super) fn new(prepared: PreparedPair) -> Self {
        let frame_bytes = prepared.carriage().frame_bytes();
        let max_entries = prepared.endpoint().max_send_entries.into();
        let PreparedPair {
            pair,
            own,
            heads,
            seat,
            ..
        } = prepared;
        Self {
            number: pair.number(),
            has_times: seat.site.polling().times,
            died: None,
            doubt: None,
            leaver: None,
            is_refused: false,
            is_left: false,
            sending: PairSending::new(
                seat.site.send_requests(),
                &pair,
                max_entries,
                heads,
                frame_bytes,
            ),
            state: PairState::Live(pair),
            own,
            limbo: Vec::new(),
            landings: Landings::default(),
            seat,
        }
    }

    /// Terms of frames over a connected queue pair.
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
        })
    }

    pub(super) fn site(&self) -> &Arc<Site> {
        &self.seat.site
    }

    /// As [`Wires::in_flight`].
    pub(super) fn in_flight(&self) -> Option<u64> {
        match self.state {
            // What was flushed needs nothing any more.
            PairState::Gone => None,
            _ => self.sending.slots.in_flight(),
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        matches!(self.state, PairState::Gone)
    }

    /// Whether it may send: it is not on its way out.
    #[inline]
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, PairState::Live(_))
    }

    /// What is wrong with its port just now.
    fn doubt_of_port(&self) -> Option<Arc<str>> {
        match self.seat.site.port_state() {
            Ok(PortState::Active) => None,
            Ok(state) => Some(self.seat.site.of_port(&format!("it is {state}")).into()),
            Err(error) => Some(error.to_string().into()),
        }
    }

    /// Whether it lives and the device has not said that it died.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.is_live() && self.died.is_none()
    }
}

impl Link {
    /// Requests up to a signaled one are done.
    pub(super) fn sends_are_done(&mut self, context: &mut Context<'_>) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        if let Some(writes) = pair.sending.take_done_writes() {
            self.session.writes_are_done(writes);
        }
        if self.parting.is_empty() {
            return;
        }
        let done = pair.sending.slots.done();
        self.frames_are_gone(done, context);
    }

    // ---- Granted memory --------------------------------------------------------------

    /// Keeps what the peer may be writing to, of an end that nobody has any more.
    pub(super) fn keep_granted(&mut self, end: u32, granted: impl Iterator<Item = LargeLease>) {
        if let Wires::Pair(pair) = &mut self.wires {
            pair.limbo.extend(granted.map(|memory| (end, memory)));
        }
    }

    /// The peer's end is gone, and everything that it wrote is there.
    pub(super) fn grants_are_over(&mut self, end: u32) {
        if let Wires::Pair(pair) = &mut self.wires {
            pair.limbo.retain(|(granted, _)| *granted != end);
            pair.landings.forget(end);
        }
    }

    /// Nothing of the peer comes any more. What it was in the middle of writing to goes, and
    /// its key with it.
    fn withdraw_grants(&mut self, context: &mut Context<'_>) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        let limbo = pair.limbo.drain(..).map(|(_, memory)| memory);
        let receivers = self.receivers.values_mut();
        let granted = limbo.chain(receivers.flat_map(ReceiveLink::withdraw_large));
        let withdrawn = granted.map(LargeLease::withdraw);
        let withdrawn: Vec<_> = withdrawn.chain(pair.landings.withdraw()).collect();
        if !withdrawn.is_empty() {
            context.leftovers.push(Box::new(withdrawn));
        }
    }

    // ---- The end ---------------------------------------------------------------------

    /// Moves the queue pair to ERR; completions are taken in until it is drained.
    pub(super) fn leave_pair(&mut self) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        match mem::replace(&mut pair.state, PairState::Gone) {
            PairState::Live(queue_pair) => {
                let (now, timeout) = (clock::now(), DEFAULT_DRAIN_TIMEOUT);
                // A number may come back; the session's never does.
                let generation = self.shared.id as u32;
                let mut teardown = Teardown::begin(queue_pair, generation, now, timeout);
                if let Some(event) = &pair.died {
                    teardown.handle_event(event);
                }
                self.timers.set(Timer::Drain, teardown.deadline());
                pair.leaver = Some(pair.seat.site.leaves());
                pair.state = PairState::Leaving(Box::new(teardown));
            }
            state => pair.state = state,
        }
    }

    /// Ends a queue pair that is drained, and with it what waited for that: the session, or
    /// that it goes on without. Returns whether it did.
    pub(super) fn look_at_teardown(
        &mut self,
        now: Instant,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        let Wires::Pair(pair) = &mut self.wires else {
            return false;
        };
        let PairState::Leaving(teardown) = &pair.state else {
            return false;
        };
        match teardown.verdict(now) {
            Verdict::Draining => return false,
            Verdict::Drained => pair.seat.was_drained(),
            Verdict::GaveUp(reason) => tracing::debug!(
                peer = %self.shared.peer_in_log(),
                reason,
                "a queue pair is destroyed before it was drained"
            ),
        }
        self.destroy_pair(tools, context);
        true
    }

    fn destroy_pair(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        pair.state = PairState::Gone;
        pair.leaver = None;
        let is_refused = pair.is_refused;
        let is_awaited = !pair.is_left && !is_refused && self.rewiring.is_some();
        self.frames_are_gone(u64::MAX, context);
        self.withdraw_grants(context);
        if self.phase == Phase::Gone {
            return;
        }
        match self.broken.take() {
            // The goodbye was among what arrived, and the peer is there and waits for ours.
            Some(cause) if self.phase == Phase::PeerClosed && is_awaited => {
                self.suspend(cause, tools, context);
            }
            // It goes nowhere any more.
            _ if self.phase == Phase::PeerClosed => self.finish(&EndCause::Goodbye, context),
            Some(cause) if is_refused => self.end_broken(cause, context),
            Some(cause) => self.wires_broke(cause, tools, context),
            None => self.finish(&EndCause::Goodbye, context),
        }
    }

    /// Nothing of the site will complete any more.
    pub(crate) fn site_is_lost(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        if self.phase == Phase::Gone || self.rewiring.is_none() {
            return self.end_broken(cause, context);
        }
        self.drain_then_end(cause);
        self.destroy_pair(tools, context);
    }

    /// The session went on without its queue pair: what was granted for that is wanted anew.
    pub(super) fn leave_site(&mut self, context: &mut Context<'_>) {
        self.has_left_site = true;
        self.shared.carrier.lose_pair();
        self.session.withdraw_memory();
        for (end, receiver) in self.receivers.iter_mut() {
            let again = receiver.want_again();
            context
                .wanted
                .extend(again.map(|(sequence, length)| MemoryWanted {
                    session: self.shared.clone(),
                    end,
                    purpose: Purpose::Large { sequence, length },
                }));
        }
    }

    /// A request failed: the queue pair is dead. The first failure is the cause, what is
    /// flushed after it follows from it.
    ///
    /// That it was the peer's fault is no proof: soft-RoCE says so of honest messages where
    /// packets are lost. A peer that breaks the protocol does so over other wires too, in
    /// frames that we read.
    pub(super) fn request_failed(&mut self, failure: &CompletionFailure) {
        let Wires::Pair(pair) = &self.wires else {
            return;
        };
        if !pair.is_live() {
            return;
        }
        let fault = failure.fault();
        let why = match fault {
            Fault::Protocol => format!("the device says that the protocol was broken: {failure}"),
            _ => failure.to_string(),
        };
        let doubt = match fault {
            // The device may not have said yet that its port is down.
            Fault::Link | Fault::Flushed => pair.doubt.clone().or_else(|| pair.doubt_of_port()),
            Fault::Ours | Fault::Device | Fault::Protocol => None,
        };
        self.drain_then_end(match (fault, doubt) {
            (Fault::Ours | Fault::Device, _) => EndCause::DeviceLost { why },
            (Fault::Link | Fault::Flushed, Some(doubt)) => EndCause::DeviceLost {
                why: format!("{doubt}; {why}"),
            },
            (_, None | Some(_)) => EndCause::lost(why),
        });
    }

    /// The protocol was broken: the session ends behind what has arrived.
    pub(super) fn refuse(&mut self, why: String) {
        if let Wires::Pair(pair) = &mut self.wires
            && self.broken.is_none()
        {
            pair.is_refused = true;
        }
        self.drain_then_end(EndCause::lost(why));
    }

    /// Something is wrong with the port of our queue pair, or nothing any more.
    pub(crate) fn doubt_port(&mut self, doubt: Option<Arc<str>>) {
        if let Wires::Pair(pair) = &mut self.wires {
            pair.doubt = doubt;
        }
    }

    /// The peer does not reach our queue pair any more.
    pub(crate) fn port_moved(&mut self, why: &str) {
        let why = why.to_owned();
        self.drain_then_end(EndCause::DeviceLost { why });
    }

    /// The device said something of our queue pair. Returns whether it was of consequence.
    pub(crate) fn pair_event(&mut self, event: &AsyncEvent) -> bool {
        let Wires::Pair(pair) = &mut self.wires else {
            return false;
        };
        if let PairState::Leaving(teardown) = &mut pair.state {
            return teardown.handle_event(event);
        }
        let AsyncEvent::QueuePair(_, said) = event else {
            return false;
        };
        let why = event.to_string();
        match said {
            QueuePairEvent::Fatal => self.drain_then_end(EndCause::DeviceLost { why }),
            QueuePairEvent::InvalidRequest => self.protocol_was_broken("an invalid request", &why),
            QueuePairEvent::AccessViolation => {
                self.protocol_was_broken("a request for memory that was not granted", &why);
            }
            // It is dead. Why, a completion tells, unless it had nothing outstanding.
            QueuePairEvent::LastRequestReached => {
                pair.died = Some(*event);
                pair.leaver = Some(pair.seat.site.leaves());
            }
            // It was connected before, is never drained alive, and has one path.
            QueuePairEvent::Established
            | QueuePairEvent::SendQueueDrained
            | QueuePairEvent::PathMigrated
            | QueuePairEvent::PathMigrationFailed => return false,
        }
        true
    }

    /// Our device refused a request of the peer.
    fn protocol_was_broken(&mut self, request: &str, event: &str) {
        let why =
            format!("the device says that it broke the protocol: it made {request} ({event})");
        self.drain_then_end(EndCause::lost(why));
    }

    /// The completion queue was found empty after everything in it was taken. Returns
    /// whether that set anything going.
    pub(crate) fn completions_are_empty(&mut self) -> bool {
        let Wires::Pair(pair) = &mut self.wires else {
            return false;
        };
        match (&mut pair.state, pair.died) {
            (PairState::Leaving(teardown), _) => {
                teardown.handle_empty_poll();
                false
            }
            (PairState::Live(_), Some(event)) => {
                let why = event.to_string();
                self.drain_then_end(EndCause::lost(why));
                true
            }
            _ => false,
        }
    }

    /// The site of the link's queue pair, and its number.
    pub(crate) fn pair_at(&self) -> Option<(&Arc<Site>, u32)> {
        match &self.wires {
            Wires::Pair(pair) => Some((&pair.seat.site, pair.number)),
            Wires::Stream(_) | Wires::None => None,
        }
    }
}
