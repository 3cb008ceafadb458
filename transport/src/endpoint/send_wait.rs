//! The waits of a sender: for the peer's open, for room in the ring, for counters.

use std::{sync::atomic::Ordering, time::Instant};

use ibex_base::fork;
use ibex_protocol::format::control::{Ask, CloseReason, Role};
use ibex_ring::{
    end_status::SenderWords,
    parking::{Condition, Patience, TimedOut},
};

use crate::{
    endpoint::{
        error::{Full, SendError, SendFailure, StayedFull, WaitAckedError},
        send_end::{SendEnd, Wish},
        send_producer::SendProducer,
        stall::Recovered,
    },
    node::{Stalled, What},
};

impl SendEnd {
    /// Waits until the peer has opened its end.
    pub(crate) fn opened(&self, patience: Patience) -> Result<(), SendFailure> {
        Ok(self.wait_open(patience, || self.counts())?)
    }

    /// Waits for counters.
    pub(crate) fn wait_news(&self, ask: Ask, patience: Patience) -> Result<(), WaitAckedError> {
        if fork::is_child() {
            return Err(self.used_after_fork().into());
        }
        if ask == Ask::default() {
            return self.check_opened();
        }
        match self.opened(patience) {
            Ok(()) => {}
            Err(SendFailure::Failed(error)) => {
                // Acknowledgements that came before the end still count.
                return match self.answered(&ask) {
                    Some(answer) => answer,
                    None => Err(error.into()),
                };
            }
            Err(_) => return Err(self.late(ask)),
        }
        let deadline = match patience {
            Patience::None | Patience::Glance => Some(Instant::now()),
            Patience::Until(deadline) => deadline,
        };
        let mut news = News {
            end: self,
            ask,
            asked: None,
            has_told: false,
        };
        if let Some(answer) = news.look() {
            return answer;
        }
        if self.ours.get().is_none() {
            // Looking is useless before the peer's engine has heard the question.
            news.ask();
        }
        self.session
            .wait(&self.waiters, deadline, news)
            .unwrap_or_else(|TimedOut| Err(self.late(ask)))
    }

    /// Returns the answer to a wait when no message was sent: no acknowledgement is missing, but a
    /// failed open is an error.
    pub(crate) fn check_opened(&self) -> Result<(), WaitAckedError> {
        let failure = self.open_failure(|| self.counts());
        failure.map_or(Ok(()), |unusable| Err(SendError::from(unusable).into()))
    }

    /// Returns the answer that the counters give, or the error of a channel that is over.
    pub(crate) fn look_for(&self, ask: &Ask) -> Option<Result<(), WaitAckedError>> {
        // The counters take precedence: their answer stays true when the channel has ended.
        let over = self.state.is_over();
        self.answered(ask)
            .or_else(|| over.then(|| Err(WaitAckedError::Failed(self.error()))))
    }

    /// Asks the peer to report as soon as `ask` is fulfilled.
    pub(crate) fn ask_for(&self, ask: &Ask, asked: &mut Option<Wish>) {
        match self.ours.get() {
            Some(ours) => {
                let wish = if ask.released == 0 {
                    Wish::News
                } else {
                    Wish::Room
                };
                ask_in_memory(self, ours, wish, asked);
            }
            // The engine keeps the question until the peer has answered it.
            None => self.session.ask(self.id, *ask),
        }
    }

    /// Asks the peer to report the acknowledgement of message `sequence`, for a caller that does
    /// not wait and looks again later. The first of such calls in a row asks; the engine keeps the
    /// question.
    pub(crate) fn ask_in_passing(&self, sequence: u64) {
        let is_news = self.asked_in_passing.swap(sequence, Ordering::Relaxed) != sequence;
        if is_news && self.ours.get().is_none() && !fork::is_child() {
            self.session.ask_once(self.id, sequence);
        }
    }

    /// Asks the peer to report the next release. The peer is not asked for memory of large
    /// messages, which this node's engine frees, nor before it has opened its end.
    pub(crate) fn ask_for_room(&self, asked: &mut Option<Wish>) {
        if self.theirs.get().is_some() {
            let released = self.counts().released + 1;
            let ask = Ask {
                released,
                ..Ask::default()
            };
            self.ask_for(&ask, asked);
        }
    }

    /// Returns the last message that the receiver has acknowledged, and whether acknowledgement has
    /// ended because the receiver dropped a message unacknowledged.
    pub(crate) fn acknowledged(&self) -> (u64, bool) {
        let (acknowledged, ended) = match self.theirs.get().filter(|_| !fork::is_child()) {
            Some(theirs) => theirs.acknowledged(),
            None => (0, false),
        };
        // A peer's counters are limited to what was sent.
        (acknowledged.min(self.sent.load(Ordering::Acquire)), ended)
    }

    /// Asks the peer to ring when its counters move. For the engine, if the peer reads this end's
    /// words in shared memory.
    pub(crate) fn ask_for_news(&self, asked: &mut Option<Wish>) {
        if let Some(ours) = self.ours.get() {
            ask_in_memory(self, ours, Wish::News, asked);
        }
    }

    /// Withdraws the question, because no thread needs the answer.
    pub(crate) fn take_back_question(&self, asked: &mut Option<Wish>) {
        if let Some(ours) = self.ours.get() {
            self.asking.give_up(ours, asked);
        }
    }

    /// Returns the answer that the counters give, if they give one.
    fn answered(&self, ask: &Ask) -> Option<Result<(), WaitAckedError>> {
        let theirs = self.theirs.get()?;
        let (acknowledged, ended) = theirs.acknowledged();
        if theirs.received() >= ask.received && acknowledged >= ask.acknowledged {
            return Some(Ok(()));
        }
        (ended && ask.acknowledged > acknowledged).then(|| {
            Err(WaitAckedError::Unacknowledged {
                channel: self.name.to_string(),
                peer: self.session.peer_name(),
                sequence: acknowledged + 1,
            })
        })
    }

    /// Returns the error of a wait whose deadline passed before the counters answered.
    #[cold]
    fn late(&self, ask: Ask) -> WaitAckedError {
        WaitAckedError::Timeout {
            channel: self.name.to_string(),
            peer: self.session.peer_name(),
            sequence: ask.received.max(ask.acknowledged),
            counts: self.counts(),
        }
    }

    /// Returns the error of a send whose deadline passed while there was no room, or while another
    /// clone had the turn.
    #[cold]
    pub(crate) fn stayed_full(&self, full: Option<Full>) -> SendFailure {
        SendFailure::TimedOut(Box::new(StayedFull {
            channel: self.name.to_string(),
            peer: self.session.peer_name(),
            counts: self.counts(),
            is_behind_clone: full.is_none(),
            full,
            interface: self.interface(),
        }))
    }

    /// Closes the end, because the last handle is gone or the channel cannot go on.
    pub(crate) fn close(&self, reason: CloseReason) {
        let last = self.sent.load(Ordering::Acquire);
        // The word means an orderly end. The receiver learns of any other end from its engine, with
        // the reason.
        if let Some(ours) = self.ours.get()
            && reason == CloseReason::Dropped
            && !self.state.is_over()
        {
            ours.close(last);
            self.session.asymmetry().light();
            if self
                .theirs
                .get()
                .is_some_and(|theirs| theirs.armed.load(Ordering::Relaxed) != 0)
            {
                self.session.ring_peer();
            }
        }
        self.session.close_sender(self.id, last, reason);
    }
}

/// The condition "enough room".
pub(crate) struct Room<'a, F> {
    pub(crate) end: &'a SendEnd,
    pub(crate) producer: &'a mut SendProducer,
    pub(crate) ask: Ask,
    pub(crate) asked: Option<Wish>,
    pub(crate) enough: F,
}

impl SendEnd {
    /// Returns the progress that matters to the wait: messages that the peer released or, if
    /// releases do not matter, bytes that this engine sent.
    fn progress(&self, producer: &SendProducer, ask: Ask) -> u64 {
        if ask == Ask::default() && !self.session.shares_memory() {
            return self.session.counters.bytes_sent.get();
        }
        producer.ring.released().messages
    }

    /// Notes that there is no room. Reports it once, when that lasts long and nothing has moved.
    pub(crate) fn no_room(&self, producer: &SendProducer, ask: Ask) {
        let progress = self.progress(producer, ask);
        if !self.stall.goes_on(progress) {
            self.room_came();
            self.stall.begin(progress);
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
        }))
    }

    /// Notes that there is room.
    #[inline]
    pub(crate) fn room_came(&self) {
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
        self.session.tell(what);
    }
}

impl<F: FnMut(&mut SendProducer) -> bool> Condition for Room<'_, F> {
    type Output = Result<(), SendFailure>;

    fn look(&mut self) -> Option<Self::Output> {
        if self.end.state.is_over() {
            return Some(Err(self.end.error().into()));
        }
        if self.producer.refresh().is_err() {
            self.end
                .session
                .misbehaved("its released counter went back or beyond what was sent");
            return Some(Err(self.end.error().into()));
        }
        (self.enough)(self.producer).then_some(Ok(()))
    }

    fn ask(&mut self) {
        match self.end.ours.get() {
            Some(ours) => ask_in_memory(self.end, ours, Wish::Room, &mut self.asked),
            // The sender waits for its own engine, so the peer is not asked.
            None if self.ask == Ask::default() => {}
            None => {
                let next = self.producer.ring.released().messages + 1;
                let ask = Ask {
                    released: self.ask.released.min(next),
                    ..self.ask
                };
                self.end.session.ask(self.end.id, ask);
            }
        }
    }

    fn disarm(&mut self) {
        if let Some(ours) = self.end.ours.get() {
            self.end.asking.give_up(ours, &mut self.asked);
        }
    }
}

/// Asks in the word that the peer reads in shared memory, and rings the peer.
fn ask_in_memory(end: &SendEnd, ours: &SenderWords, wish: Wish, asked: &mut Option<Wish>) {
    end.asking.ask(ours, wish, asked, end.session.asymmetry());
    end.session.ring_peer();
}

/// The condition "the counters answer the question".
struct News<'a> {
    end: &'a SendEnd,
    ask: Ask,
    /// The question that stands in shared memory, if the peer reads this end's words.
    asked: Option<Wish>,
    /// The question was asked, over the wire or in shared memory.
    has_told: bool,
}

impl Condition for News<'_> {
    type Output = Result<(), WaitAckedError>;

    fn look(&mut self) -> Option<Self::Output> {
        self.end.look_for(&self.ask)
    }

    fn ask(&mut self) {
        let end = self.end;
        // The engine keeps the question until the peer has answered it.
        if end.ours.get().is_some() || !self.has_told {
            self.has_told = true;
            end.ask_for(&self.ask, &mut self.asked);
        }
    }

    fn disarm(&mut self) {
        if let Some(ours) = self.end.ours.get() {
            self.end.asking.give_up(ours, &mut self.asked);
        }
    }
}
