//! A sender's handle: encode in place, publish, ring once if the other side sleeps.
//!
//! The path of a message is [`SendHandle::send`] down to `SendEnd::publish`: no fence, no locked
//! instruction, no system call, no allocation. The rest of this file handles a channel that is not
//! open or is over, and a full ring. `large.rs` sends messages that are too long for a ring.

mod large;

use std::sync::atomic::Ordering;
use std::{
    cmp, fmt,
    mem::{self, ManuallyDrop, MaybeUninit},
    sync::Arc,
    thread,
};

use ibex_base::fork;
use ibex_protocol::format::{
    control::{Ask, CloseReason},
    record::{LargeAnnouncement, RecordKind},
    trace_context::TraceContext,
};
use ibex_ring::parking::{Condition, Patience, TimedOut};

use super::{reservation::RawReservation, task::SendWaits};
use crate::{
    clock,
    endpoint::{
        channel_end::ChannelEnd,
        error::{ChannelError, FailureReason, Full},
        send_end::{SendEnd, Writing},
        send_producer::SendProducer,
        send_wait::{Registration, Room},
        state::End,
    },
    node::{Measured, SessionShared, Stopwatch},
    session::{Counts, EndCause},
};

/// Why an encoder stopped.
#[derive(Debug)]
pub enum Abort {
    /// The slot was too small.
    Overflow,
    /// The value cannot be encoded.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// Encodes one message into the given slot and returns its encoded length.
type Encoder<'a> = dyn FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort> + 'a;

/// A sender's handle, without the message type.
pub struct SendHandle {
    pub(super) end: Arc<SendEnd>,
    pub(super) reserved: Reserved,
    /// True once this handle was closed and sends no more.
    is_closed: bool,
    /// Wakers and tickets that waiting tasks left here.
    pub(super) waits: SendWaits,
}

/// The state of a handle's reservation: none, or made and neither published nor dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserved {
    No,
    /// Made by the end's only handle.
    Alone,
    /// Made by a handle that holds the turnstile.
    InTurn,
}

impl SendHandle {
    pub(crate) fn new(end: Arc<SendEnd>) -> Self {
        Self {
            end,
            reserved: Reserved::No,
            is_closed: false,
            waits: SendWaits::default(),
        }
    }

    /// Gives this end a number that its failures carry back.
    #[must_use]
    pub fn with_tag(self, tag: u8) -> Self {
        self.end.set_tag(tag);
        self
    }

    /// Makes another handle of a shared end, which itself counts as one of its handles.
    pub(super) fn of_shared(end: Arc<SendEnd>) -> Self {
        end.handles.fetch_add(1, Ordering::Relaxed);
        Self::new(end)
    }

    /// Declares that this handle has sent everything. The channel may then end in order even if a
    /// panic drops the handle.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Breaks the channel off. When the last handle is dropped, the receiver gets everything that
    /// was sent, and then an error with this reason instead of an orderly end. The first reason
    /// counts.
    pub fn break_off(&mut self, reason: CloseReason) {
        self.end.break_off(reason);
    }

    /// The session that the channel belongs to.
    #[must_use]
    pub fn session(&self) -> &Arc<SessionShared> {
        &self.end.session
    }

    /// The channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.end.name
    }

    /// The end, as its session numbers it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.end.id
    }

    /// Returns the channel's counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.end.counts()
    }

    // ---- The path of a message -------------------------------------------------------

    /// Encodes a message into the ring and publishes it.
    ///
    /// `size` is the encoded length where it is known. `encode` may be called again with
    /// a larger slot after it answered [`Abort::Overflow`].
    #[inline]
    pub fn send(
        &mut self,
        size: Option<usize>,
        patience: Patience,
        encode: impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Result<u64, ChannelError> {
        self.enter(patience)?.send(size, patience, encode)
    }

    /// Reserves room for a payload of `length` bytes, to be built in place.
    #[inline(always)]
    pub fn reserve(
        &mut self,
        length: usize,
        patience: Patience,
    ) -> Result<RawReservation<'_>, ChannelError> {
        let mut entered = self.enter(patience)?;
        entered.place(length, patience)?;
        self.reserved = entered.keep();
        Ok(RawReservation {
            handle: self,
            length,
        })
    }

    #[inline(always)]
    pub(super) fn enter(&mut self, patience: Patience) -> Result<Entered<'_>, ChannelError> {
        if fork::is_child() {
            return Err(self.end.used_after_fork());
        }
        self.end_if_leaked();
        // The favour is withdrawn before a second handle exists. Passing that handle to another
        // thread orders the withdrawal before its use there (rule 2 of the sending end).
        let in_turn = !self.end.bias.try_enter();
        if in_turn {
            self.end.take_turn(patience)?;
        }
        Ok(Entered {
            end: &self.end,
            in_turn,
        })
    }

    /// Returns whether there is another handle, or was one.
    pub(super) fn was_cloned(&self) -> bool {
        self.end.bias.is_withdrawn()
    }

    /// Takes the right to the producer and keeps it until [`let_go`](Self::let_go). Only for an end
    /// that was never cloned.
    #[inline(always)]
    pub(super) fn hold(&mut self) -> ManuallyDrop<Entered<'_>> {
        if self.reserved == Reserved::No {
            while !self.end.bias.try_enter() {
                // The engine holds the producer for a moment.
                thread::yield_now();
            }
            self.reserved = Reserved::Alone;
        }
        ManuallyDrop::new(Entered {
            end: &self.end,
            in_turn: false,
        })
    }

    /// Returns the right to the producer that the reservation has kept since it was made.
    #[inline(always)]
    pub(super) fn reserved_entry(&mut self) -> Entered<'_> {
        Entered {
            end: &self.end,
            in_turn: self.reserved == Reserved::InTurn,
        }
    }

    /// Takes that right for a message to be encoded, and ends the reservation.
    pub(super) fn take_reserved_entry(&mut self) -> Entered<'_> {
        let in_turn = mem::replace(&mut self.reserved, Reserved::No) == Reserved::InTurn;
        if in_turn {
            // The turnstile then reports an encoder that sends on this channel itself.
            self.end.turnstile.hand_to_thread();
        }
        Entered {
            end: &self.end,
            in_turn,
        }
    }

    /// Returns the producer of the current reservation.
    #[inline(always)]
    pub(super) fn reserved_producer(&mut self) -> Option<&mut SendProducer> {
        debug_assert_ne!(self.reserved, Reserved::No);
        // SAFETY: the reservation keeps the right to the producer (rule 4). Only the handle uses
        // that right, and the handle is borrowed exclusively.
        unsafe { (*self.end.writing.get()).producer.as_deref_mut() }
    }

    /// Returns the producer of the current reservation, for reading.
    pub(super) fn peek_reserved_producer(&self) -> Option<&SendProducer> {
        debug_assert_ne!(self.reserved, Reserved::No);
        // SAFETY: as above. The handle is borrowed shared, and its borrowers only read the
        // producer.
        unsafe { (*self.end.writing.get()).producer.as_deref() }
    }

    /// Gives a kept right to the producer back, and with it a place for a large message that was
    /// made meanwhile.
    #[inline]
    pub(super) fn let_go(&mut self) {
        if self.reserved == Reserved::No {
            return;
        }
        let mut entered = ManuallyDrop::into_inner(self.hold());
        if let Some(producer) = entered.producer() {
            producer.reserved_large = None;
        }
        drop(entered);
        self.reserved = Reserved::No;
    }

    /// Ends the channel if a reservation was leaked.
    #[inline(always)]
    pub(super) fn end_if_leaked(&mut self) {
        if self.reserved != Reserved::No {
            self.reservation_was_leaked();
        }
    }

    #[cold]
    fn reservation_was_leaked(&mut self) {
        if fork::is_child() {
            return;
        }
        // The reservation says how it entered. The end's present state does not, because the first
        // clone may have been made since.
        let in_turn = self.reserved == Reserved::InTurn;
        self.reserved = Reserved::No;
        self.end.state.end(End::Cause(EndCause::SlotLeaked));
        drop(Entered {
            end: &self.end,
            in_turn,
        });
        self.end.close(CloseReason::SlotLeaked);
        self.end.waiters.wake_all();
    }

    // ---- Waiting ---------------------------------------------------------------------

    pub(super) fn end(&self) -> &SendEnd {
        &self.end
    }

    /// Fingerprint of the message type that both ends settled on, once they have.
    #[must_use]
    pub fn settled(&self) -> Option<[u8; 16]> {
        self.end.settled()
    }

    /// Waits until the peer has opened its end.
    pub fn opened(&mut self, patience: Patience) -> Result<(), ChannelError> {
        self.end.opened(patience)
    }

    /// Waits until the peer's engine holds message `sequence`.
    pub fn wait_received(&self, sequence: u64, patience: Patience) -> Result<(), ChannelError> {
        match self.end.path.delivered(&self.end, sequence) {
            Some(answer) => answer,
            None => self.end.wait_news(Ask::received(sequence), patience),
        }
    }

    /// Returns why the channel never opened, if that is certain.
    #[must_use]
    pub fn open_failure(&self) -> Option<ChannelError> {
        self.end.open_failure(|| self.end.counts())
    }

    /// Returns whether the peer has opened its end.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.end.state.agreed().is_some()
    }

    /// Returns whether the peer has closed its end, for any reason, before a message was sent.
    #[must_use]
    pub fn has_met_closed_end(&self) -> bool {
        let reason = self.end.state.reason();
        matches!(reason, Some(End::Cause(EndCause::PeerClosed(_)))) && self.last_sequence() == 0
    }

    /// Waits until the peer's application has acknowledged message `sequence`.
    pub fn wait_acked(&self, sequence: u64, patience: Patience) -> Result<(), ChannelError> {
        let stopwatch = self.time_ack();
        self.end.wait_news(Ask::acknowledged(sequence), patience)?;
        if let Some(stopwatch) = stopwatch {
            stopwatch.record();
        }
        Ok(())
    }

    /// Starts to measure a wait for an acknowledgement, if the node keeps histograms.
    #[must_use]
    pub fn time_ack(&self) -> Option<Stopwatch> {
        let end = &self.end;
        let find = || end.session.node().recorder(Measured::AckWaits, &end.name);
        Stopwatch::start(end.ack_waits.get_or_init(find).as_ref())
    }

    /// Returns the last message's sequence; 0 before the first message.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        // SENT, pairs with `publish`.
        self.end.sent.load(Ordering::Acquire)
    }
}

impl Clone for SendHandle {
    fn clone(&self) -> Self {
        self.end.bias.withdraw();
        self.end.handles.fetch_add(1, Ordering::Relaxed);
        Self {
            end: self.end.clone(),
            reserved: Reserved::No,
            is_closed: false,
            waits: SendWaits::default(),
        }
    }
}

impl fmt::Debug for SendHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ChannelEnd::fmt(&self.end, f)
    }
}

impl Drop for SendHandle {
    fn drop(&mut self) {
        if fork::is_child() {
            // The end is leaked, so that a fork of the process frees nothing that the end holds.
            mem::forget(self.end.clone());
            return;
        }
        self.leave();
        self.end_if_leaked();
        if thread::panicking() && !self.is_closed {
            // The panic prevented messages that the handle was meant to send.
            self.end.break_off(CloseReason::Aborted);
        }
        // HANDLES, pairs with itself and `SendEnd::forsake`: the last handle sees what the others
        // sent, and why one broke the channel off.
        if self.end.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end.close(self.end.parting());
        }
    }
}

/// The right to touch the producer (rules 1 and 2 of the sending end).
pub(super) struct Entered<'a> {
    pub(super) end: &'a Arc<SendEnd>,
    /// True if the right came from the turnstile, false if it came from the bias.
    pub(super) in_turn: bool,
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
    pub(super) fn send(
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
    pub(super) fn producer(&mut self) -> Option<&mut SendProducer> {
        self.writing().producer.as_deref_mut()
    }

    /// Returns the producer of an open channel. The first send makes the ring.
    pub(super) fn open_producer(
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
    pub(super) fn publish_reserved(&mut self, length: usize) -> u64 {
        let end = self.end;
        let Some(producer) = self.producer() else {
            unreachable!("a reservation has a producer")
        };
        match producer.reserved_large.take() {
            None => end.publish(producer, RecordKind::Data, length),
            Some(place) => end.publish_large(producer, RecordKind::Large, place, length),
        }
    }

    #[cold]
    #[inline(never)]
    fn send_slow(
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
        let end = self.end;
        self.open_producer(patience)?;
        let is_traced = end.state.agreed().is_some_and(|agreed| agreed.is_traced);
        match is_traced
            .then(|| end.session.node.trace_context())
            .flatten()
        {
            None => self.send_as(
                (RecordKind::Data, RecordKind::Large),
                size,
                patience,
                encode,
            ),
            Some(context) => self.send_as(
                (RecordKind::TracedData, RecordKind::TracedLarge),
                size.map(|size| size + TraceContext::BYTES),
                patience,
                &mut |slot| append_context(context, slot, encode),
            ),
        }
    }

    /// Sends a message by a record of one of these kinds: in the ring, or as the announcement of
    /// one beside it.
    fn send_as(
        &mut self,
        kinds: (RecordKind, RecordKind),
        size: Option<usize>,
        patience: Patience,
        encode: &mut Encoder<'_>,
    ) -> Result<u64, ChannelError> {
        let end = self.end;
        let (in_ring, beside) = kinds;
        let producer = self.open_producer(patience)?;
        producer.largest = end.path.longest_record(end, &producer.ring);
        if let Some(length) = size.filter(|&length| length as u64 > producer.max_message_bytes) {
            return Err(end.too_long(Some(length as u64)));
        }
        let mut wanted = size.unwrap_or(producer.typical);
        while wanted <= producer.largest {
            end.wait_room(producer, wanted, patience)?;
            let slot = producer.slot();
            let room = slot.len();
            match encode(slot) {
                Ok(length) if length as u64 > producer.max_message_bytes => {
                    return Err(end.too_long(Some(length as u64)));
                }
                Ok(length) => return Ok(end.publish(producer, in_ring, length)),
                Err(Abort::Failed(error)) => return Err(end.failed(FailureReason::Encode(error))),
                Err(Abort::Overflow) if room >= producer.largest => break,
                Err(Abort::Overflow) => wanted = (room * 2).clamp(wanted + 1, producer.largest),
            }
        }
        end.send_large(producer, beside, size, patience, encode)
    }

    /// Finds a place in which `length` bytes can be built: room in the ring, or separate memory.
    #[inline(always)]
    pub(super) fn place(&mut self, length: usize, patience: Patience) -> Result<(), ChannelError> {
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
        end.wait_room(producer, LargeAnnouncement::MAX_BYTES, patience)?;
        producer.reserved_large = Some(place);
        Ok(())
    }
}

/// Encodes a message with a trace context behind it. Returns the length of both.
fn append_context(
    context: TraceContext,
    slot: &mut [MaybeUninit<u8>],
    encode: &mut Encoder<'_>,
) -> Result<usize, Abort> {
    let room = slot.len().checked_sub(TraceContext::BYTES);
    let room = room.ok_or(Abort::Overflow)?;
    let length = encode(&mut slot[..room])?;
    for (to, from) in slot[length..].iter_mut().zip(context.to_bytes()) {
        to.write(from);
    }
    Ok(length + TraceContext::BYTES)
}

/// Steps that need the right to the producer.
impl SendEnd {
    /// Publishes a payload that was encoded in the ring's slot.
    #[inline(always)]
    fn publish(&self, producer: &mut SendProducer, kind: RecordKind, length: usize) -> u64 {
        let sequence = producer.ring.publish(kind, length);
        // SENT, pairs with the loads of `sent`: a thread that sees the count finds the records.
        self.sent.store(sequence, Ordering::Release);
        if !kind.is_large() {
            producer.typical = length;
        }
        if producer
            .doorbell
            .is_due(&producer.theirs.armed, producer.asymmetry)
        {
            let generation = producer.doorbell.generation();
            self.path.ring_reader(self, generation);
        }
        producer.untransmitted += length;
        if producer.untransmitted >= producer.attend_at {
            self.attend(producer, sequence);
        }
        sequence
    }

    /// Runs a turn if many bytes are queued, and notes the time of a message where times are kept.
    #[cold]
    fn attend(&self, producer: &mut SendProducer, sequence: u64) {
        if let Some(times) = &self.times {
            self.was_published(times, sequence);
        }
        if producer.untransmitted >= producer.transmit_at {
            producer.untransmitted = 0;
            self.session.poll();
        }
    }

    // ---- Waiting ---------------------------------------------------------------------

    pub(super) fn wait_room(
        &self,
        producer: &mut SendProducer,
        length: usize,
        patience: Patience,
    ) -> Result<(), ChannelError> {
        producer
            .back(length)
            .map_err(|error| self.failed(FailureReason::Memory(error)))?;
        let full = SendProducer::full_window;
        self.wait_until(producer, patience, (FOR_RELEASE, full), |producer| {
            producer.takes(length)
        })
    }

    /// Waits until `enough` holds for the producer, and checks after each release. `ask` is the
    /// question to the peer's engine, where one is needed; [`u64::MAX`] in it means any release.
    /// `full` names the limit that was reached.
    fn wait_until(
        &self,
        producer: &mut SendProducer,
        patience: Patience,
        (ask, full): (Ask, impl Fn(&SendProducer) -> Full),
        mut enough: impl FnMut(&mut SendProducer) -> bool,
    ) -> Result<(), ChannelError> {
        let (end, session) = (self, &self.session);
        // What was released when the first look failed. Only the first round looks before it waits;
        // each wait begins with a new question.
        let mut released = None;
        let mut waits_since = None;
        let answer = loop {
            let mut room = Room {
                end,
                producer: &mut *producer,
                ask,
                registration: Registration::default(),
                enough: &mut enough,
            };
            if released.is_none()
                && let Some(answer) = room.look()
            {
                break answer;
            }
            let released = *released.get_or_insert_with(|| end.counts().released);
            end.no_room(room.producer, ask);
            let Patience::Until(deadline) = patience else {
                // The peer may have released messages that the local engine has not noticed yet.
                if patience == Patience::None {
                    session.poll();
                }
                break room.look().ok_or(ChannelError::WouldBlock)?;
            };
            if self.times.is_some() {
                waits_since.get_or_insert_with(clock::now);
            }
            // A sender that waits for long wakes up once to report the stall.
            let until = [deadline, end.stall.notice_at()]
                .into_iter()
                .flatten()
                .min();
            match session.wait_for(until, room) {
                Ok(answer) => break answer,
                Err(TimedOut) if until == deadline => {
                    return Err(end.stayed_full(Some(full(producer)), released));
                }
                Err(TimedOut) => {}
            }
        };
        if let Some(since) = waits_since
            && answer.is_ok()
        {
            end.waited_for_room(since);
        }
        match answer {
            Ok(()) => end.room_came(),
            // The channel is over. The caller gets that error, so the end of the stall is not
            // reported.
            Err(_) => {
                let _ = end.stall.end();
            }
        }
        answer
    }

    pub(super) fn too_long(&self, length: Option<u64>) -> ChannelError {
        let agreed = self.state.agreed();
        let (limit, here_to_there) = agreed.map_or((0, cmp::Ordering::Equal), |agreed| {
            (agreed.max_message_bytes, agreed.limit_here_to_there)
        });
        self.failed(FailureReason::TooLong {
            length,
            limit,
            here_to_there,
        })
    }
}

/// The question of a call that waits for the release of any message.
const FOR_RELEASE: Ask = Ask {
    received: 0,
    released: u64::MAX,
    acknowledged: 0,
};
