//! The waits of a sender: for the peer's open, for room in the ring, for counters.

use std::{
    mem,
    sync::atomic::Ordering,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::fork;
use ibex_protocol::format::control::{Ask, CloseReason, Role};
use ibex_ring::parking::{self, Condition, Patience, Ticket, TimedOut};

use crate::{
    endpoint::{
        send_end::{AskedEvent, SendEnd},
        send_producer::SendProducer,
        stall::Recovered,
    },
    node::{Stalled, What},
    session::{ChannelError, Counts, FailureReason, Full},
};

impl SendEnd {
    /// Waits until the peer has opened its end.
    pub(crate) fn opened(&self, patience: Patience) -> Result<(), ChannelError> {
        self.wait_open(patience, || self.counts())
    }

    /// Waits for counters.
    pub(crate) fn wait_changes(&self, ask: Ask, patience: Patience) -> Result<(), ChannelError> {
        if fork::is_child() {
            return Err(self.used_after_fork());
        }
        if ask == Ask::default() {
            return self.check_opened();
        }
        match self.opened(patience) {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                return Err(self.late(ask, Counts::default()));
            }
            // Acknowledgements that came before the end still count.
            Err(error) => return self.answered(&ask).unwrap_or(Err(error)),
        }
        let deadline = match patience {
            Patience::None => Some(Instant::now()),
            Patience::Until(deadline) => deadline,
        };
        let mut registration = Registration::default();
        let mut changes = Answered::new(self, ask, &mut registration);
        if let Some(answer) = changes.check() {
            return answer;
        }
        let before = self.counts();
        self.path.ask_ahead(self, &ask);
        changes.is_asked = true;
        let answer = self
            .session
            .wait_for(deadline, changes)
            .unwrap_or_else(|TimedOut| Err(self.late(ask, before)));
        if answer.is_ok() {
            self.was_answered(ask.received.max(ask.acknowledged));
        }
        answer
    }

    /// Waits for counters, for a task. While it is pending, `registration` holds its waker.
    pub(crate) fn poll_changes(
        &self,
        registration: &mut Registration,
        waker: &Waker,
        ask: Ask,
    ) -> Poll<Result<(), ChannelError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.used_after_fork()));
        }
        if ask == Ask::default() {
            self.leave(registration);
            return Poll::Ready(self.check_opened());
        }
        // Where callers turn the engine, the turn may bring the answer at once.
        let changes = Answered::new(self, ask, registration);
        let answer = parking::poll(changes, waker, || self.session.requests.poll());
        if let Poll::Ready(Ok(())) = answer {
            self.was_answered(ask.received.max(ask.acknowledged));
        }
        answer
    }

    /// Leaves a waker for any changes from the peer or the engine. A check follows.
    pub(crate) fn register(&self, registration: &mut Registration, waker: &Waker) {
        self.waiters.renew(&mut registration.ticket, waker);
    }

    /// Takes back the waker and the question of a waiter that no longer waits. Returns whether the
    /// waker was still there, unused.
    pub(crate) fn leave(&self, registration: &mut Registration) -> bool {
        let mut left = mem::take(registration);
        // In a fork of the process no thread will use the waker.
        if !left.is_left() || fork::is_child() {
            return false;
        }
        self.path.take_back_question(&mut left.asked);
        self.waiters.leave(&mut left.ticket)
    }

    /// Returns the answer to a wait when no message was sent: no acknowledgement is missing, but a
    /// failed open is an error.
    pub(crate) fn check_opened(&self) -> Result<(), ChannelError> {
        let failure = self.open_failure(|| self.counts());
        failure.map_or(Ok(()), Err)
    }

    /// Returns the answer that the counters give, or the error of a channel that is over.
    pub(crate) fn check_for(&self, ask: &Ask) -> Option<Result<(), ChannelError>> {
        // The counters take precedence: their answer stays true when the channel has ended.
        let over = self.state.is_over();
        self.answered(ask)
            .or_else(|| over.then(|| Err(self.error())))
    }

    /// Asks the peer to report the next release. The peer is not asked for memory of large
    /// messages, which this node's engine frees, nor before it has opened its end.
    pub(crate) fn ask_for_room(&self, asked: &mut Option<AskedEvent>) {
        if self.theirs.get().is_some() {
            let released = self.counts().released + 1;
            let ask = Ask {
                released,
                ..Ask::default()
            };
            self.path.ask_for(self, &ask, asked, false);
        }
    }

    /// Returns the last message that the receiver has acknowledged, and whether acknowledgement has
    /// ended because the receiver dropped a message unacknowledged.
    pub(crate) fn acknowledged(&self) -> (u64, bool) {
        let (acknowledged, ended) = match self.theirs.get().filter(|_| !fork::is_child()) {
            Some(theirs) => theirs.acknowledged(),
            None => (0, false),
        };
        // A peer's counters are limited to what was sent. SENT, pairs with `SendEnd::publish`.
        (acknowledged.min(self.sent.load(Ordering::Acquire)), ended)
    }

    /// Returns whether a thread or task waits for what the peer has not acknowledged yet.
    pub(crate) fn is_waited_for(&self) -> bool {
        let counts = self.counts();
        counts.acknowledged < counts.sent && self.waiters.is_waiting()
    }

    /// Returns the answer that the counters give, if they give one.
    fn answered(&self, ask: &Ask) -> Option<Result<(), ChannelError>> {
        let theirs = self.theirs.get()?;
        let (acknowledged, ended) = theirs.acknowledged();
        if theirs.received() >= ask.received && acknowledged >= ask.acknowledged {
            return Some(Ok(()));
        }
        (ended && ask.acknowledged > acknowledged).then(|| {
            let dropped = FailureReason::Unacknowledged(acknowledged + 1);
            Err(self.failure(self.counts(), dropped).into())
        })
    }

    /// Returns the error of a wait whose deadline passed before the counters answered.
    #[cold]
    fn late(&self, ask: Ask, before: Counts) -> ChannelError {
        let counts = self.counts();
        let meanwhile = match ask.acknowledged {
            0 => counts.received.saturating_sub(before.received),
            _ => counts.acknowledged.saturating_sub(before.acknowledged),
        };
        let sequence = ask.received.max(ask.acknowledged);
        let reason = FailureReason::NotDone {
            sequence,
            meanwhile,
        };
        self.waited(counts, reason).into()
    }

    /// Returns the error of a send whose deadline passed while there was no room, or while another
    /// clone had the turn. `released` messages were released when the wait began.
    #[cold]
    pub(crate) fn stayed_full(&self, full: Option<Full>, released: u64) -> ChannelError {
        let counts = self.counts();
        let reason = FailureReason::NoRoom {
            full,
            released_meanwhile: counts.released.saturating_sub(released),
            stalled_for: full.and_then(|_| self.stall.lasts()),
        };
        self.waited(counts, reason).into()
    }

    /// Closes the end, because the last handle is gone or the channel cannot go on.
    pub(crate) fn close(&self, reason: CloseReason) {
        // SENT, pairs with `publish`: the channel ends behind records that are there.
        let last = self.sent.load(Ordering::Acquire);
        // The word means an orderly end. The receiver learns of any other end from its engine, with
        // the reason.
        if reason == CloseReason::Dropped && !self.state.is_over() {
            self.path.close_in_order(self, last);
        }
        self.session.requests.close_sender(self.id, last, reason);
    }
}

/// A waiter's waker at a sending end, and its question to the peer.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    pub(crate) ticket: Option<Ticket>,
    /// The question that stands in shared memory, if the peer reads this end's words.
    pub(crate) asked: Option<AskedEvent>,
}

impl Registration {
    /// Returns whether a waker was left and not taken back. The waker may have been used.
    pub(crate) fn has_waker(&self) -> bool {
        self.ticket.is_some()
    }

    /// Returns whether there is anything to take back.
    pub(crate) fn is_left(&self) -> bool {
        self.has_waker() || self.asked.is_some()
    }
}

/// The condition "enough room".
pub(crate) struct Room<'a, F> {
    pub(crate) end: &'a SendEnd,
    pub(crate) producer: &'a mut SendProducer,
    pub(crate) ask: Ask,
    pub(crate) registration: Registration,
    pub(crate) enough: F,
}

impl SendEnd {
    /// Notes that there is no room. Reports it once, when that lasts long and nothing has moved.
    pub(crate) fn no_room(&self, is_for_engine: bool) {
        if !self.is_stalled() {
            self.end_stall();
            let progress = self.progress(is_for_engine);
            self.stall.begin(is_for_engine, progress);
        } else if let Some(stalled) = self.take_notice() {
            self.notice(stalled);
        }
    }

    /// Returns the notice of the present wait, if the wait is long enough and was not reported yet.
    pub(crate) fn take_notice(&self) -> Option<What> {
        let since = self.stall.take_notice()?;
        Some(What::Stalled(Stalled {
            channel: self.name.to_string(),
            end: Role::Sender,
            since,
            oldest: self.counts().released + 1,
            held: None,
            lacks_room: false,
            suspended: self.cut_off(),
        }))
    }

    /// Returns whether a call waited for room and nothing has moved since, though no call may wait
    /// now.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stall
            .goes_on(|is_for_engine| self.progress(is_for_engine))
    }

    /// Returns the progress that matters to a wait for room: messages that the peer released or,
    /// where the wait is for this engine, what it has sent of long messages.
    fn progress(&self, is_for_engine: bool) -> u64 {
        match is_for_engine && self.path.sends_by_engine() {
            true => self.large_bytes_sent.get() + self.large_gone.load(Ordering::Relaxed),
            false => self.counts().released,
        }
    }

    /// Notes that there is room for one of the things that a message needs. `has_waited` says
    /// whether this call waited for it.
    ///
    /// A call that gave up leaves its wait behind. The next one may find what it needs first, and
    /// wait for the same as the one before after that: then the channel does not go on.
    #[inline]
    pub(crate) fn room_came(&self, is_for_engine: bool, has_waited: bool) {
        let has_waited = has_waited && self.stall.is_for_engine() == is_for_engine;
        if has_waited || !self.is_stalled() {
            self.end_stall();
        }
    }

    /// Ends the wait, and reports that if the wait was reported.
    fn end_stall(&self) {
        if let Some(Recovered(stalled)) = self.stall.end() {
            self.notice(What::Recovered {
                channel: self.name.to_string(),
                end: Role::Sender,
                stalled,
            });
        }
    }

    #[cold]
    fn notice(&self, what: What) {
        what.warn(&self.session);
        self.session.requests.tell(what);
    }
}

impl<F: FnMut(&mut SendProducer) -> bool> Condition for Room<'_, F> {
    type Output = Result<(), ChannelError>;

    fn check(&mut self) -> Option<Self::Output> {
        if self.end.state.is_over() {
            return Some(Err(self.end.error()));
        }
        if self.producer.refresh().is_err() {
            self.end
                .session
                .requests
                .misbehaved("its released counter went back or beyond what was sent");
            return Some(Err(self.end.error()));
        }
        (self.enough)(self.producer).then_some(Ok(()))
    }

    fn lasts(&self) -> Duration {
        self.producer.out.waits.lasts()
    }

    fn ask(&mut self) {
        let next = self.producer.ring.released().messages + 1;
        let ask = Ask {
            released: self.ask.released.clamp(1, next),
            ..self.ask
        };
        // A sender that waits for its own engine does not ask the peer's.
        let is_for_engine = self.ask == Ask::default();
        let asked = &mut self.registration.asked;
        let end = self.end;
        end.path.ask_for(end, &ask, asked, is_for_engine);
    }

    fn register(&mut self, waker: &Waker) {
        self.end.register(&mut self.registration, waker);
    }

    fn leave(&mut self) {
        self.end.leave(&mut self.registration);
    }
}

/// The condition "the counters answer the question".
struct Answered<'a> {
    end: &'a SendEnd,
    ask: Ask,
    registration: &'a mut Registration,
    /// The question was asked.
    is_asked: bool,
}

impl<'a> Answered<'a> {
    fn new(end: &'a SendEnd, ask: Ask, registration: &'a mut Registration) -> Self {
        Self {
            end,
            ask,
            registration,
            is_asked: false,
        }
    }
}

impl Condition for Answered<'_> {
    type Output = Result<(), ChannelError>;

    fn check(&mut self) -> Option<Self::Output> {
        self.end.check_for(&self.ask)
    }

    fn ask(&mut self) {
        let is_asked = mem::replace(&mut self.is_asked, true);
        let asked = &mut self.registration.asked;
        let end = self.end;
        end.path.ask_for(end, &self.ask, asked, is_asked);
    }

    fn register(&mut self, waker: &Waker) {
        self.end.register(self.registration, waker);
    }

    fn leave(&mut self) {
        self.end.leave(self.registration);
    }
}
