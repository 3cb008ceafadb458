//! Questions of a sender to its receiver, and what is left of them.
#![forbid(unsafe_code)]

use crate::format::counters::Counters;

/// Counters that a waiting sender wants to be told. A target of 0 asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Tell once this many messages are received.
    pub received: u64,
    /// Tell once this many messages are released.
    pub released: u64,
    /// Tell once this many messages are acknowledged, or never can be.
    pub acknowledged: u64,
}

impl Ask {
    /// Asks to hear that message `sequence` is received.
    #[must_use]
    pub fn received(sequence: u64) -> Self {
        Self {
            received: sequence,
            ..Self::default()
        }
    }

    /// Asks to hear that message `sequence` is acknowledged, or never will be.
    #[must_use]
    pub fn acknowledged(sequence: u64) -> Self {
        Self {
            acknowledged: sequence,
            ..Self::default()
        }
    }

    /// Returns the targets that `told` leaves unanswered, and 0 for each other one.
    #[must_use]
    pub fn unanswered(self, told: &Counters) -> Self {
        let unless_reached = |target: u64, told: u64| if target > told { target } else { 0 };
        Self {
            received: unless_reached(self.received, told.received),
            released: unless_reached(self.released, told.released),
            acknowledged: unless_reached(self.acknowledged, told.settled()),
        }
    }
}

/// Questions of a sending end, as either engine keeps them until they are answered: the nearest
/// unanswered target of each kind, and the farthest.
///
/// The sender's engine lets its peer know the nearest one. While it has a farther one, each answer
/// leads to the next question, for one message more than was told. So each waiter between the two
/// is told of its message, and the receiver answers at most once a round trip. A lone waiter costs
/// one question and one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    nearest: Ask,
    farthest: Ask,
}

impl Questions {
    /// Keeps a single question.
    #[must_use]
    pub fn only(ask: Ask) -> Self {
        Self {
            nearest: ask,
            farthest: ask,
        }
    }

    /// Adds a question. `told` is what the sender has heard so far, or was told.
    pub fn add(&mut self, ask: Ask, told: &Counters) {
        let (held, ask) = (self.nearest.unanswered(told), ask.unanswered(told));
        let nearer = |one: u64, other: u64| match (one, other) {
            (0, only) | (only, 0) => only,
            (one, other) => one.min(other),
        };
        let farthest = &mut self.farthest;
        farthest.received = farthest.received.max(ask.received);
        farthest.released = farthest.released.max(ask.released);
        farthest.acknowledged = farthest.acknowledged.max(ask.acknowledged);
        self.nearest = Ask {
            received: nearer(held.received, ask.received),
            // Any release answers a question for room.
            released: farthest.released,
            acknowledged: nearer(held.acknowledged, ask.acknowledged),
        };
    }

    /// Returns whether the questions lead to an answer once message `target` is acknowledged.
    #[must_use]
    pub fn cover_acknowledged(&self, target: u64, told: &Counters) -> bool {
        self.nearest.acknowledged > told.settled()
            && (self.nearest.acknowledged..=self.farthest.acknowledged).contains(&target)
    }

    /// The farthest targets, answered or not.
    #[inline]
    #[must_use]
    pub fn farthest(&self) -> &Ask {
        &self.farthest
    }

    /// Returns whether the counters `now` reach a target that the sender was not `told` of.
    #[must_use]
    pub fn is_answer_due(&self, told: &Counters, now: &Counters) -> bool {
        let reached = |target: u64, told: u64, now: u64| target > told && now >= target;
        let any = |target: fn(&Ask) -> u64, told: u64, now: u64| {
            reached(target(&self.nearest), told, now) || reached(target(&self.farthest), told, now)
        };
        let ends_unheard = self.farthest.acknowledged > told.acknowledged
            && now.acknowledgement_ended
            && !told.acknowledgement_ended;
        let settled = match told.acknowledgement_ended {
            true => now.released,
            false => now.acknowledged,
        };
        any(|ask| ask.received, told.received, now.received)
            || (self.farthest.released > told.released && now.released > told.released)
            || any(|ask| ask.acknowledged, told.settled(), settled)
            || ends_unheard
    }

    /// Returns whether `told` answers the question that the peer knows and leaves a farther one
    /// open: then the peer has to be asked for [the next](Self::next).
    #[inline]
    #[must_use]
    pub fn goes_on(&self, told: &Counters) -> bool {
        let goes_on = |nearest: u64, farthest: u64, told: u64| nearest <= told && told < farthest;
        let (nearest, farthest) = (&self.nearest, &self.farthest);
        goes_on(nearest.received, farthest.received, told.received)
            || goes_on(nearest.acknowledged, farthest.acknowledged, told.settled())
    }

    /// Returns the question that the peer has to know now. All targets are 0 if `told` answers
    /// every question.
    pub fn next(&mut self, told: &Counters) -> Ask {
        let nearest = self.nearest.unanswered(told);
        let left = self.farthest.unanswered(told);
        let next = |nearest: u64, farthest: u64, told: u64| match (nearest, farthest) {
            (0, 0) => 0,
            (0, _) => told + 1,
            (nearest, _) => nearest,
        };
        self.nearest = Ask {
            received: next(nearest.received, left.received, told.received),
            released: left.released,
            acknowledged: next(nearest.acknowledged, left.acknowledged, told.settled()),
        };
        self.nearest
    }
}
