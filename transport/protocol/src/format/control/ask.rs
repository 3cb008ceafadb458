//! Questions of a sender to its receiver, and what is left of them.
#![forbid(unsafe_code)]

use crate::format::counters::Counters;

ibex_base::wire_structs! {
    /// Counters of which a waiting sender wants to be notified. A target of 0 asks for nothing.
    #[derive(Copy, Default)]
    pub struct Ask {
        /// Tell once this many messages are received.
        pub received: u64 = "counter",
        /// Tell once this many messages are released.
        pub released: u64 = "counter",
        /// Tell once this many messages are acknowledged, or never can be.
        pub acknowledged: u64 = "counter",
    }
}

impl Ask {
    /// Asks to learn that message `sequence` is received.
    #[must_use]
    pub fn received(sequence: u64) -> Self {
        Self {
            received: sequence,
            ..Self::default()
        }
    }

    /// Asks to learn that message `sequence` is acknowledged, or never will be.
    #[must_use]
    pub fn acknowledged(sequence: u64) -> Self {
        Self {
            acknowledged: sequence,
            ..Self::default()
        }
    }

    /// Returns the targets that `notified` leaves unanswered, and 0 for each other one.
    #[must_use]
    pub fn unanswered(self, notified: &Counters) -> Self {
        let unless_reached =
            |target: u64, notified: u64| if target > notified { target } else { 0 };
        Self {
            received: unless_reached(self.received, notified.received),
            released: unless_reached(self.released, notified.released),
            acknowledged: unless_reached(self.acknowledged, notified.settled()),
        }
    }
}

/// Questions of a sending end, as either engine keeps them until they are answered: the nearest
/// unanswered target of each kind, and the farthest.
///
/// The sender's engine lets its peer know the nearest one. While it has a farther one, each answer
/// leads to the next question, for one message more than was reported. So each waiter between the two
/// is notified of its message, and the receiver answers at most once a round trip. A lone waiter costs
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

    /// Adds a question. `notified` is what the sender has received so far, or was notified of.
    pub fn add(&mut self, ask: Ask, notified: &Counters) {
        let (held, ask) = (self.nearest.unanswered(notified), ask.unanswered(notified));
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
    pub fn cover_acknowledged(&self, target: u64, notified: &Counters) -> bool {
        self.nearest.acknowledged > notified.settled()
            && (self.nearest.acknowledged..=self.farthest.acknowledged).contains(&target)
    }

    /// The farthest targets, answered or not.
    #[inline]
    #[must_use]
    pub fn farthest(&self) -> &Ask {
        &self.farthest
    }

    /// Returns whether the counters `now` reach a target that the sender was not `notified` of.
    #[must_use]
    pub fn is_answer_due(&self, notified: &Counters, now: &Counters) -> bool {
        let reached = |target: u64, notified: u64, now: u64| target > notified && now >= target;
        let any = |target: fn(&Ask) -> u64, notified: u64, now: u64| {
            reached(target(&self.nearest), notified, now)
                || reached(target(&self.farthest), notified, now)
        };
        let ends_unreceived = self.farthest.acknowledged > notified.acknowledged
            && now.acknowledgement_ended
            && !notified.acknowledgement_ended;
        let settled = match notified.acknowledgement_ended {
            true => now.released,
            false => now.acknowledged,
        };
        any(|ask| ask.received, notified.received, now.received)
            || (self.farthest.released > notified.released && now.released > notified.released)
            || any(|ask| ask.acknowledged, notified.settled(), settled)
            || ends_unreceived
    }

    /// Returns whether `notified` answers the question that the peer knows and leaves a farther one
    /// open: then the peer has to be asked for [the next](Self::next).
    #[inline]
    #[must_use]
    pub fn goes_on(&self, notified: &Counters) -> bool {
        let goes_on =
            |nearest: u64, farthest: u64, notified: u64| nearest <= notified && notified < farthest;
        let (nearest, farthest) = (&self.nearest, &self.farthest);
        goes_on(nearest.received, farthest.received, notified.received)
            || goes_on(
                nearest.acknowledged,
                farthest.acknowledged,
                notified.settled(),
            )
    }

    /// Returns the question that the peer has to know now. All targets are 0 if `notified` answers
    /// every question.
    pub fn next(&mut self, notified: &Counters) -> Ask {
        let nearest = self.nearest.unanswered(notified);
        let left = self.farthest.unanswered(notified);
        let next = |nearest: u64, farthest: u64, notified: u64| match (nearest, farthest) {
            (0, 0) => 0,
            (0, _) => notified + 1,
            (nearest, _) => nearest,
        };
        self.nearest = Ask {
            received: next(nearest.received, left.received, notified.received),
            released: left.released,
            acknowledged: next(nearest.acknowledged, left.acknowledged, notified.settled()),
        };
        self.nearest
    }
}
