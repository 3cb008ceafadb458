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
//! 4. A queue pair never just goes: it is moved to ERR, and what arrived until then is
//!    handed on before the link ends and before it is destroyed.

use std::{io, mem, ops::Range, ptr, sync::Arc, time::Instant};

use super::{
    Link, Phase, Wires,
    send_link::{Rings, SendLink},
};
use crate::{
    channel::EndCause,
    driver::Context,
    engine::{
        carriage::LEAST_BUFFER_BYTES,
        frame::{FrameHeader, HEAD_BYTES},
        id_map::IdMap,
        session::{Body, SessionConfig},
        signal_cadence::SignalCadence,
        timer::Timer,
    },
    fabric::verbs::{
        ArrivalBuffers, AsyncEvent, CompletionFailure, DEFAULT_DRAIN_TIMEOUT, Fault, Leaver,
        MemoryRegion, PreparedPair, QueuePair, QueuePairEvent, SEND_BATCH, ScatterEntry, Seat,
        SendRequest, SendSlots, Site, Teardown, Verdict,
    },
    memory::Mapping,
};

/// The queue pair of one link.
pub(super) struct Pair {
    // In the order in which they go.
    pub(super) state: PairState,
    /// The buffers of its own receive queue, where it shares none.
    pub(super) own: Option<ArrivalBuffers>,
    heads: MemoryRegion<Mapping>,
    seat: Seat,

    // Who it is and how it is.
    number: u32,
    /// The device said that it died, before we knew.
    died: Option<AsyncEvent>,
    /// The site tells it that the completion queue is empty.
    leaver: Option<Leaver>,

    // Sending.
    pub(super) slots: SendSlots,
    cadence: SignalCadence,
    /// Frames are due and cannot go before a completion comes: of a send, for a place in
    /// the queue, or of a receive, with credit.
    pub(super) is_blocked: bool,
    /// Heads of the batch that is being built, one behind the other.
    head: Vec<u8>,
    planned: Vec<Planned>,
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

/// A frame of the batch that is being built.
struct Planned {
    head: Head,
    body: Body,
    is_signaled: bool,
    /// The head slab is in use up to here, once it is posted.
    staged: u64,
}

/// Where a frame's head is.
enum Head {
    /// In the list of heads: the frame goes inline.
    Inline(Range<usize>),
    /// In the head slab.
    Staged(Range<usize>),
}

/// The longest head: of records and chunks, or a control message as a whole.
const LONGEST_HEAD: usize = if LEAST_BUFFER_BYTES > HEAD_BYTES {
    LEAST_BUFFER_BYTES
} else {
    HEAD_BYTES
};

impl Pair {
    /// Takes over a connected queue pair, and writes into `session` what frames over it
    /// are like.
    pub(super) fn new(prepared: PreparedPair, session: &mut SessionConfig) -> io::Result<Self> {
        let Some(peer_credit) = prepared.peer_credit() else {
            return Err(io::Error::other(
                "the queue pair of the session was never connected to the peer's",
            ));
        };
        session.carriage = prepared.carriage();
        session.dialed = prepared.dialed();
        session.our_credit = prepared.endpoint().credit.into();
        session.peer_credit = peer_credit.into();
        let PreparedPair {
            pair,
            own,
            heads,
            seat,
            ..
        } = prepared;
        Ok(Self {
            number: pair.number(),
            died: None,
            leaver: None,
            slots: SendSlots::new(seat.site.send_requests(), heads.bytes()),
            state: PairState::Live(pair),
            own,
            heads,
            seat,
            cadence: SignalCadence::default(),
            is_blocked: false,
            head: Vec::with_capacity(SEND_BATCH * HEAD_BYTES + LONGEST_HEAD),
            planned: Vec::with_capacity(SEND_BATCH),
        })
    }

    /// As [`Wires::in_flight`].
    pub(super) fn in_flight(&self) -> Option<u64> {
        match self.state {
            // What was flushed needs nothing any more.
            PairState::Gone => None,
            _ => self.slots.in_flight(),
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        matches!(self.state, PairState::Gone)
    }

    /// Puts as many frames as there is room for into `planned`.
    fn plan(&mut self, mut next: impl FnMut(&mut Vec<u8>) -> Option<(Body, bool)>) {
        let PairState::Live(queue_pair) = &self.state else {
            return;
        };
        let room = self.slots.room().min(queue_pair.send_room() as usize);
        let max_inline = queue_pair.max_inline_bytes() as usize;
        self.head.clear();
        while self.planned.len() < room.min(SEND_BATCH) && self.slots.has_stage(LONGEST_HEAD) {
            let start = self.head.len();
            let Some((body, ends_something)) = next(&mut self.head) else {
                break;
            };
            let head = start..self.head.len();
            let head = if head.len() + body.bytes() <= max_inline {
                Head::Inline(head)
            } else {
                let at = self.slots.stage(head.len());
                let staged = at..at + head.len();
                // SAFETY: `stage` gave a range of the slab that no outstanding request
                // uses, and the region is written here only.
                unsafe {
                    ptr::copy_nonoverlapping(
                        self.head[head].as_ptr(),
                        self.heads.base().add(at).as_ptr(),
                        staged.len(),
                    );
                }
                Head::Staged(staged)
            };
            self.planned.push(Planned {
                head,
                body,
                is_signaled: self.cadence.is_due(ends_something),
                staged: self.slots.staged(),
            });
        }
    }
}

impl Link {
    /// Posts frames in batches, one doorbell for each, until nothing is due or the queue
    /// is full.
    pub(super) fn transmit_pair(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        if self.phase == Phase::Gone || self.broken.is_some() {
            return false;
        }
        while self.session.is_due() && self.post_batch() {
            progress = true;
        }
        self.finish_if_said(context);
        progress
    }

    /// The next batch; false if nothing is due or the queue is full.
    fn post_batch(&mut self) -> bool {
        let Wires::Pair(pair) = &mut self.wires else {
            return false;
        };
        let (session, senders) = (&mut self.session, &mut self.senders);
        pair.plan(|head| {
            if !session.is_due() {
                return None;
            }
            let start = head.len();
            let body = session.poll_transmit(&mut Rings(senders), 0, head)?;
            Some((body, ends_something(&head[start..], body, senders)))
        });
        let counters = &self.shared.counters;
        if pair.planned.is_empty() {
            let was_blocked = mem::replace(&mut pair.is_blocked, session.is_out_of_credit());
            if pair.is_blocked && !was_blocked {
                let is_full = pair.slots.room() == 0 || !pair.slots.has_stage(LONGEST_HEAD);
                let stalls = match is_full {
                    true => &counters.queue_stalls,
                    false => &counters.credit_stalls,
                };
                stalls.add(1);
            }
            return false;
        }
        pair.is_blocked = false;
        let Pair {
            state: PairState::Live(queue_pair),
            heads,
            slots,
            head,
            planned,
            ..
        } = &mut **pair
        else {
            return false;
        };
        let (mut inline, mut signaled, mut bytes) = (0, 0, 0);
        let mut batch = queue_pair.send_batch();
        for frame in &*planned {
            let (first, is_inline) = match &frame.head {
                Head::Inline(range) => (ScatterEntry::unregistered(&head[range.clone()]), true),
                Head::Staged(range) => (heads.entry(range.clone()), false),
            };
            let mut entries = [first, ScatterEntry::EMPTY, ScatterEntry::EMPTY];
            let mut count = 1;
            for piece in pieces(&self.senders, frame.body).into_iter().flatten() {
                entries[count] = piece;
                count += 1;
            }
            let entries = &entries[..count];
            let mut request = SendRequest::send(slots.post(frame.staged), entries);
            if is_inline {
                request = request.inline();
                inline += 1;
            }
            if frame.is_signaled {
                request = request.signaled();
                signaled += 1;
            }
            bytes += request.bytes();
            // Room, pieces and inline bytes were asked for before.
            batch.push(&request).expect("a planned frame fits");
        }
        let posted = batch.post();
        let frames = planned.len() as u64;
        planned.clear();
        counters.frames_sent.add(frames);
        counters.bytes_sent.add(bytes);
        counters.work_requests.add(frames);
        counters.inline_sends.add(inline);
        counters.eager_sends.add(frames - inline);
        counters.signaled.add(signaled);
        counters.doorbells.add(1);
        if let Err(error) = posted {
            let why = error.to_string();
            self.drain_then_end(EndCause::DeviceLost { why });
            return false;
        }
        true
    }

    /// Requests up to a signaled one are done.
    pub(super) fn sends_are_done(&mut self) {
        if self.parting.is_empty() {
            return;
        }
        let Wires::Pair(pair) = &self.wires else {
            return;
        };
        let done = pair.slots.done();
        self.parting.retain(|parting| parting.until > done);
    }

    // ---- The end ---------------------------------------------------------------------

    /// Moves the queue pair to ERR; completions are taken in until it is drained.
    pub(super) fn leave_pair(&mut self) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        match mem::replace(&mut pair.state, PairState::Gone) {
            PairState::Live(queue_pair) => {
                let (now, timeout) = (Instant::now(), DEFAULT_DRAIN_TIMEOUT);
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

    /// Ends a queue pair that is drained, and with it a session that waited for that.
    pub(super) fn look_at_teardown(&mut self, now: Instant, context: &mut Context<'_>) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        let PairState::Leaving(teardown) = &pair.state else {
            return;
        };
        match teardown.verdict(now) {
            Verdict::Draining => return,
            Verdict::Drained => {}
            Verdict::GaveUp(reason) => tracing::debug!(
                peer = %self.shared.peer().address,
                reason,
                "a queue pair is destroyed before it was drained"
            ),
        }
        pair.state = PairState::Gone;
        pair.leaver = None;
        self.parting.clear();
        if self.phase == Phase::Gone {
            return;
        }
        match self.broken.take() {
            // The goodbye was among what arrived, and ours goes nowhere any more.
            _ if self.phase == Phase::PeerClosed => self.finish(&EndCause::Goodbye, context),
            Some(cause) => self.end_broken(cause, context),
            None => self.finish(&EndCause::Goodbye, context),
        }
    }

    /// A request failed: the queue pair is dead. The first failure is the cause, what is
    /// flushed after it follows from it.
    pub(super) fn request_failed(&mut self, failure: &CompletionFailure) {
        let Wires::Pair(pair) = &self.wires else {
            return;
        };
        if !matches!(pair.state, PairState::Live(_)) {
            return;
        }
        let why = failure.to_string();
        self.drain_then_end(match failure.fault() {
            Fault::Ours | Fault::Device => EndCause::DeviceLost { why },
            Fault::Protocol => EndCause::PeerGone {
                why: format!("the protocol was broken: {why}"),
            },
            Fault::Link | Fault::Flushed => EndCause::PeerGone { why },
        });
    }

    /// The device said something of our queue pair.
    pub(crate) fn pair_event(&mut self, event: &AsyncEvent) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        if let PairState::Leaving(teardown) = &mut pair.state {
            teardown.handle_event(event);
            return;
        }
        let AsyncEvent::QueuePair(_, said) = event else {
            return;
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
            QueuePairEvent::Established
            | QueuePairEvent::SendQueueDrained
            | QueuePairEvent::PathMigration => {
                tracing::debug!(peer = %self.shared.peer().address, %event, "of no consequence");
            }
        }
    }

    /// Our device refused a request of the peer.
    fn protocol_was_broken(&mut self, request: &str, event: &str) {
        let why = format!("it broke the protocol: it made {request} ({event})");
        self.drain_then_end(EndCause::PeerGone { why });
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
                self.drain_then_end(EndCause::PeerGone { why });
                true
            }
            _ => false,
        }
    }

    /// The site of the link's queue pair, and its number.
    pub(crate) fn pair_at(&self) -> Option<(&Arc<Site>, u32)> {
        match &self.wires {
            Wires::Pair(pair) => Some((&pair.seat.site, pair.number)),
            Wires::Stream(_) => None,
        }
    }
}

/// Whether memory, or the session, waits for a frame to be gone: a control message, or the
/// last chunk of a large one.
fn ends_something(head: &[u8], body: Body, senders: &IdMap<SendLink>) -> bool {
    match body {
        Body::Inline => {
            matches!(FrameHeader::parse(head), Ok(Some(header)) if header.body_bytes() > 0)
        }
        Body::Records { .. } => false,
        Body::Chunk { end, chunk } => senders
            .get(end)
            .and_then(|sender| sender.large_out(chunk.sequence))
            .is_some_and(|large| chunk.offset as usize + chunk.bytes == large.length),
    }
}

/// Where a device finds a frame's body.
fn pieces(senders: &IdMap<SendLink>, body: Body) -> [Option<ScatterEntry<'_>>; 2] {
    let unregistered = "handles register what they send from before they say so";
    match body {
        Body::Inline => [None, None],
        Body::Records {
            end,
            position,
            bytes,
        } => {
            let ring = senders.get(end).and_then(|sender| sender.ring.as_ref());
            let registered = ring.and_then(|ring| ring.registered.as_ref());
            registered.expect(unregistered).pieces(position, bytes)
        }
        Body::Chunk { end, chunk } => {
            let sender = senders.get(end);
            let large = sender.and_then(|sender| sender.large_out(chunk.sequence));
            let registered = large.and_then(|large| large.registered.as_ref());
            let start = chunk.offset as usize;
            let piece = registered
                .expect(unregistered)
                .piece(start..start + chunk.bytes);
            [Some(piece), None]
        }
    }
}
