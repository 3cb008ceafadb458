//! Waiting without a thread: a task leaves its waker, and then asks and arms as a thread does
//! before it sleeps.
//!
//! ```text
//!   task is polled                thread that makes the event happen
//!   look: there?
//!     yes: take the waker back
//!   leave the waker; ask; arm     publish
//!   look again: there?            any waiters? take their wakers; later, wake them
//!     no: pending
//! ```
//!
//! Order and barriers are those of a thread that sleeps (`parking::waiter` in `ibex-ring`), so the
//! same models hold. The handle that a task polled records the task's waker, so the task needs
//! nothing but the handle. The next poll renews the waker. An answer takes the waker back, and so
//! does the drop of the handle, or of a future that has borrowed it. A waker that was taken is used
//! once.
//!
//! A receiver's handle has one waker. A sender's handle has one for each kind of wait, because a
//! task may wait for room and for acknowledgements at once. Handles of one task leave the same
//! waker at several places, and each takes back its own.

use std::{
    mem::{self, MaybeUninit},
    task::{Poll, Waker, ready},
    time::Instant,
};

use ibex_base::fork;
use ibex_protocol::format::{control::Ask, record::LargeAnnouncement};
use ibex_ring::parking::{self, Condition, Patience, Ticket};

use super::{
    Abort, ChannelError, RawMessage, RawReservation, ReceiveHandle, SendHandle,
    receive_handle::NextMessage,
    send_handle::{Entered, Reserved},
};
use crate::{
    clock,
    endpoint::send_wait::Registration,
    node::PollTarget,
    runtime::{BriefPolls, EventLoop, Gathering},
};

/// Wakers and questions of tasks at a sender's handle, one for each kind of wait.
#[derive(Debug, Default)]
pub(super) struct SendWaits {
    /// The wait for room, or for the peer to open its end.
    pub(super) room: Registration,
    /// The time at which that wait began, where times of messages are kept.
    since: Option<Instant>,
    /// Ticket of a task's waker at the turnstile, while another handle may have the producer.
    turn: Option<Ticket>,
    /// The wait for the peer's engine to hold a message.
    pub(super) received: Registration,
    /// The wait for the peer's application to acknowledge a message.
    pub(super) acked: Registration,
}

impl ReceiveHandle {
    /// Returns the next message, for a task. Pending until there is a message, or the end. A peer
    /// that does not open its end for `open_timeout` is reported once.
    #[inline]
    pub fn poll_receive(&mut self, waker: &Waker) -> Poll<Result<RawMessage, ChannelError>> {
        let polled = self.take_or_register(waker, true);
        if polled.is_pending() {
            self.end().watch_open();
        }
        polled
    }

    /// Polls as [`poll_receive`](Self::poll_receive) does. If it finds a message, and an earlier
    /// poll's waker was not used yet, it wakes the task all the same, as a socket would.
    ///
    /// This serves a caller that gave up the work behind the earlier poll. Such a caller relies on
    /// the earlier waker, and not on this poll's answer.
    #[inline]
    pub fn poll_receive_waking(&mut self, waker: &Waker) -> Poll<Result<RawMessage, ChannelError>> {
        let waited = self.ticket.is_some();
        let polled = self.poll_receive(waker);
        if waited && polled.is_ready() && self.has_left_unused {
            waker.wake_by_ref();
        }
        polled
    }

    /// Polls as [`poll_receive`](Self::poll_receive) does, but never looks for a moment before it
    /// is pending. For a caller inside a waker, where a poll would delay the thread that wakes.
    pub fn poll_receive_at_once(
        &mut self,
        waker: &Waker,
    ) -> Poll<Result<RawMessage, ChannelError>> {
        let polled = self.take_or_register(waker, false);
        if polled.is_pending() {
            self.end().watch_open();
        }
        polled
    }

    /// Polls as [`poll_receive_at_once`](Self::poll_receive_at_once) does, but never reports a peer
    /// that does not open its end.
    #[inline]
    pub fn poll_receive_unwatched(
        &mut self,
        waker: &Waker,
    ) -> Poll<Result<RawMessage, ChannelError>> {
        self.take_or_register(waker, false)
    }

    #[inline]
    fn take_or_register(
        &mut self,
        waker: &Waker,
        may_poll: bool,
    ) -> Poll<Result<RawMessage, ChannelError>> {
        if !fork::is_child()
            && let Some(message) = self.take()
        {
            self.leave();
            return Poll::Ready(Ok(message));
        }
        self.receive_or_register(waker, may_poll)
    }

    /// Looks for a message, and leaves the waker if there is none. Where callers turn the engine,
    /// the first poll runs a turn. It finds the messages that this turn brings before it leaves a
    /// waker; another thread's turn wakes the waker later.
    #[inline(never)]
    fn receive_or_register(
        &mut self,
        waker: &Waker,
        may_poll: bool,
    ) -> Poll<Result<RawMessage, ChannelError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.used_after_fork()));
        }
        let found = match self.receive(Patience::None) {
            Ok(message) => Ok(message),
            Err(error) if !error.is_transient() => Err(error),
            Err(_) => {
                let end = self.end.clone();
                let may_poll = may_poll
                    && self.ticket.is_none()
                    && end.session.poll_target() == PollTarget::Memory;
                let mut brief_polls = mem::take(&mut self.brief_polls);
                let mut found = Ok(None);
                let incoming = NextMessage::new(self, &mut found);
                let event_loop = &**end.session.requests.event_loop();
                let brief = may_poll.then_some((&mut brief_polls, event_loop));
                let polled = poll_again(brief, waker, incoming, || ());
                self.brief_polls = brief_polls;
                ready!(polled);
                if let Some(found) = self.found(found) {
                    return Poll::Ready(found);
                }
                waker.wake_by_ref();
                return Poll::Pending;
            }
        };
        self.leave();
        Poll::Ready(found)
    }

    /// Waits until the peer has opened its end, for a task.
    pub fn poll_opened(&mut self, waker: &Waker) -> Poll<Result<(), ChannelError>> {
        self.leave();
        let Self { end, ticket, .. } = self;
        end.poll_open(ticket, waker, || end.counts())
    }

    /// Leaves a waker for the next message, or the end. A poll follows.
    pub(super) fn register(&mut self, waker: &Waker) {
        let mut ticket = self.ticket.take();
        // A waker that is still there was armed when it was left, and has not been rung since.
        let is_new = self.end().waiters.renew(&mut ticket, waker);
        self.ticket = ticket;
        if is_new {
            self.arm();
        }
    }

    /// Takes back the waker of a task that no longer waits, if there is one.
    #[inline]
    pub fn leave(&mut self) {
        if self.ticket.is_some() {
            self.take_back();
        }
    }

    #[inline(never)]
    fn take_back(&mut self) {
        let mut ticket = self.ticket.take();
        // In a fork of the process no thread will use the waker.
        if !fork::is_child() {
            self.has_left_unused = self.end().waiters.leave(&mut ticket);
            self.disarm();
        }
    }
}

impl SendHandle {
    /// Sends a message, for a task. Pending while there is no room for the message, or the peer has
    /// not opened its end. `size` and `encode` are as for [`send`](Self::send).
    pub fn poll_send(
        &mut self,
        waker: &Waker,
        size: Option<usize>,
        mut encode: impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Poll<Result<u64, ChannelError>> {
        self.poll_entered(waker, |entered| {
            entered.send(size, Patience::None, &mut encode)
        })
    }

    /// Reserves room for a payload of `length` bytes, for a task. `None` stands for the length of
    /// the last message. While the reservation is pending, the handle is returned as the error, so
    /// that a future can keep it.
    pub fn poll_reserve(
        &mut self,
        waker: &Waker,
        length: Option<usize>,
    ) -> Result<Result<RawReservation<'_>, ChannelError>, &mut Self> {
        let polled = self.poll_entered(waker, |mut entered| {
            let length = match length {
                Some(length) => length,
                None => entered.usual_length()?,
            };
            entered.place(length, Patience::None)?;
            if entered.in_turn {
                entered.end.turnstile.hand_to_task();
            }
            Ok((length, entered.keep()))
        });
        match polled {
            Poll::Pending => Err(self),
            Poll::Ready(Err(error)) => Ok(Err(error)),
            Poll::Ready(Ok((length, reserved))) => {
                self.reserved = reserved;
                Ok(Ok(RawReservation {
                    handle: self,
                    length,
                }))
            }
        }
    }

    /// Runs `attempt` with the right to the producer, for a task. Pending while another handle has
    /// the producer, or `attempt` finds no room.
    pub(super) fn poll_entered<R>(
        &mut self,
        waker: &Waker,
        mut attempt: impl FnMut(Entered<'_>) -> Result<R, ChannelError>,
    ) -> Poll<Result<R, ChannelError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.end().used_after_fork()));
        }
        let since = self.waits.since;
        let attempt = |entered: Entered<'_>| attempt_since(since, entered, &mut attempt);
        // Leaving the turnstile wakes its waiters, and would wake this task.
        self.leave_room();
        let entering = Entering {
            handle: self,
            attempt,
        };
        // Where callers turn the engine, the second attempt also transmits the question.
        let polled = parking::poll(entering, waker, || ());
        if polled.is_pending() {
            // A waiting thread wakes up itself to report a long wait. For a task, the engine does
            // so.
            self.end().session.requests.watch_stalls();
            self.end().watch_open();
            // The peer's end, and a turn at the producer, are no room.
            let waits_for_room = self.waits.turn.is_none() && self.is_open();
            if waits_for_room && self.end.times.is_some() {
                self.waits.since = since.or_else(|| Some(clock::now()));
            }
        }
        polled
    }

    /// Waits until the peer has opened its end, for a task.
    pub fn poll_opened(&mut self, waker: &Waker) -> Poll<Result<(), ChannelError>> {
        self.leave_room();
        let Self { end, waits, .. } = self;
        end.poll_open(&mut waits.room.ticket, waker, || end.counts())
    }

    /// Polls as [`poll_opened`](Self::poll_opened) does, but never reports a peer that does not open
    /// its end, and never runs a turn, so it may be called inside a waker.
    pub fn poll_opened_unwatched(&mut self, waker: &Waker) -> Poll<Result<(), ChannelError>> {
        self.leave_room();
        let Self { end, waits, .. } = self;
        let ticket = &mut waits.room.ticket;
        end.poll_open_unwatched(ticket, waker, || end.counts(), || ())
    }

    /// Waits until the channel is over, for a task. While it is pending, the waker is left under
    /// `held`.
    pub fn poll_over(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<()> {
        let turn = || self.session().requests.poll();
        self.end.poll_over(held, waker, turn)
    }

    /// Takes back the waker that [`poll_over`](Self::poll_over) left.
    pub fn leave_over(&self, held: &mut Option<Ticket>) {
        // In a fork of the process no thread will use the waker.
        if !fork::is_child() {
            self.end.waiters_for_end.leave(held);
        }
    }

    /// Waits until the peer's engine holds message `sequence`, for a task.
    pub fn poll_received(
        &mut self,
        waker: &Waker,
        sequence: u64,
    ) -> Poll<Result<(), ChannelError>> {
        let Self { end, waits, .. } = self;
        match end.path.delivered(end, sequence) {
            Some(answer) => Poll::Ready(answer),
            None => end.poll_changes(&mut waits.received, waker, Ask::received(sequence)),
        }
    }

    /// Waits until the peer's application has acknowledged message `sequence`, for a task.
    pub fn poll_acked(&mut self, waker: &Waker, sequence: u64) -> Poll<Result<(), ChannelError>> {
        let ask = Ask::acknowledged(sequence);
        self.end.poll_changes(&mut self.waits.acked, waker, ask)
    }

    /// Takes back the waker of a task that no longer waits for room, its turn, or the peer's open.
    /// Returns whether the waker was still there, unused.
    #[inline]
    pub fn leave_room(&mut self) -> bool {
        let Self { end, waits, .. } = self;
        if !waits.room.is_left() {
            return false;
        }
        waits.since = None;
        let was_there = end.leave(&mut waits.room);
        end.turnstile.waiters.leave(&mut waits.turn);
        was_there
    }

    /// Takes back the waker of a task that no longer waits for messages to be received.
    pub fn leave_received(&mut self) {
        self.end.leave(&mut self.waits.received);
    }

    /// Takes back the waker of a task that no longer waits for acknowledgements.
    pub fn leave_acked(&mut self) {
        self.end.leave(&mut self.waits.acked);
    }

    /// Takes back all wakers and questions that tasks left. Returns whether a waker that waited
    /// for room was still there, unused.
    pub fn leave(&mut self) -> bool {
        self.leave_received();
        self.leave_acked();
        self.leave_room()
    }
}

/// The condition "no other handle has the producer, and the attempt has found room", of a task. A
/// task gives the right to the producer back while it waits for room, because the task may never be
/// polled again.
struct Entering<'a, F> {
    handle: &'a mut SendHandle,
    attempt: F,
}

impl<R, F: FnMut(Entered<'_>) -> Result<R, ChannelError>> Condition for Entering<'_, F> {
    type Output = Result<R, ChannelError>;

    fn check(&mut self) -> Option<Self::Output> {
        let Self { handle, attempt } = self;
        let mut turn = handle.waits.turn.take();
        let done = handle.enter(Patience::None).and_then(|entered| {
            // No other handle is inside, so the task waits for room.
            entered.end.turnstile.waiters.leave(&mut turn);
            attempt(entered)
        });
        handle.waits.turn = turn;
        match done {
            Err(error) if error.is_transient() => None,
            done => Some(done),
        }
    }

    fn ask(&mut self) {
        let SendHandle { end, waits, .. } = &mut *self.handle;
        end.ask_for_room(&mut waits.room.asked);
    }

    fn register(&mut self, waker: &Waker) {
        let SendHandle { end, waits, .. } = &mut *self.handle;
        // Another handle may be inside, and no counter shows when it leaves.
        end.turnstile.waiters.renew(&mut waits.turn, waker);
        end.register(&mut waits.room, waker);
    }

    fn leave(&mut self) {
        self.handle.leave_room();
    }
}

/// Makes an attempt to send for a task that has waited `since` then, if it has.
fn attempt_since<'e, R>(
    since: Option<Instant>,
    entered: Entered<'e>,
    attempt: impl FnOnce(Entered<'e>) -> Result<R, ChannelError>,
) -> Result<R, ChannelError> {
    let Some(since) = since else {
        return attempt(entered);
    };
    let end = entered.end;
    end.waited_for_room(since);
    let done = attempt(entered);
    if done.is_err() {
        end.gave_up_waiting();
    }
    done
}

impl Entered<'_> {
    /// Returns the length of the last message, but at most the ring's largest payload, and at least
    /// the length of a large message's announcement.
    fn usual_length(&mut self) -> Result<usize, ChannelError> {
        let producer = self.open_producer(Patience::None)?;
        let usual = producer.typical.min(producer.largest);
        Ok(usual.max(LargeAnnouncement::BYTES))
    }

    /// Keeps the right to the producer for a reservation.
    #[inline(always)]
    pub(super) fn keep(self) -> Reserved {
        let reserved = match self.in_turn {
            true => Reserved::InTurn,
            false => Reserved::Alone,
        };
        mem::forget(self);
        reserved
    }
}

/// Polls `condition`, which the task has just looked at in vain. A task that may look for a moment
/// before it leaves its waker says where its looks are recorded.
fn poll_again<C: Condition>(
    brief: Option<(&mut BriefPolls, &EventLoop)>,
    waker: &Waker,
    mut condition: C,
    turn: impl FnOnce(),
) -> Poll<C::Output> {
    if let Some((brief_polls, event_loop)) = brief
        && event_loop.polls_briefly(event_loop.node.config.wait)
        && brief_polls.is_worth_one()
    {
        let found = event_loop.poll_memory(&mut condition);
        brief_polls.has_polled(found.is_some());
        if let Some(found) = found {
            return Poll::Ready(found);
        }
    }
    parking::poll_again(condition, waker, turn)
}

impl Gathering {
    /// Polls `condition`, which leaves its waker where [`notified`](Self::notified) has its waiters, and at
    /// which the task has just looked in vain. Pending until the condition holds after an event of a
    /// member, a session or the node. Where callers turn the engine, this runs a turn.
    ///
    /// A task that `may_poll` looks at memory for a moment first.
    pub fn poll_until<C: Condition>(
        &self,
        brief_polls: &mut BriefPolls,
        waker: &Waker,
        may_poll: bool,
        condition: C,
    ) -> Poll<C::Output> {
        let brief = may_poll.then(|| (brief_polls, &*self.event_loops()[0]));
        poll_again(brief, waker, condition, || self.poll())
    }
}
