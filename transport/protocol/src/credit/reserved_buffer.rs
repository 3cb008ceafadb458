//! Receive buffers beside the credit, so that talk about credit needs none.
//!
//! Rules:
//!
//! 1. Frames that say nothing but credit, a recall, a want or an answer are not charged:
//!    they are *talk* and take a reserved buffer.
//! 2. Talk is numbered. The side that took talk reports up to which number, with the next frame, or
//!    at once if no other frame is due: the *answer*. So each side knows when the buffer of its
//!    last talk is free again, and sends no new talk before.
//! 3. With one buffer each, the side that spoke last could not speak again until the other has
//!    something to say, and both may have something to say first. So the side that dialed keeps
//!    two: the acceptor's changes take one buffer, and its answers take the other. The dialer's next
//!    frame answers an answer of the acceptor. A node that many peers dial keeps one buffer for
//!    each of them.
//! 4. The dialer's talk is answered always, answers included, since it has one buffer for
//!    both; the acceptor's answers are not answered. So talk ends.
#![forbid(unsafe_code)]

/// Numbers of talk that was sent and taken, modulo 2^16. At most two are open at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedBuffer {
    /// We dialed: we keep two buffers, the peer keeps one.
    dialed: bool,

    // Our talk.
    said: u16,
    /// The last of our talk that was not a mere answer.
    changes: u16,
    /// The peer has taken all talk up to this number.
    heard: u16,

    // The peer's talk.
    taken: u16,
    /// The peer was notified that we have taken all reports up to this number.
    answered: u16,
    owes_answer: bool,
}

/// A peer broke the rules of the reserved buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveOverrun {
    /// The peer sent more than we keep buffers for.
    #[error("{open} frames came for {kept} reserved buffers")]
    Talk {
        /// Talk that we have not answered.
        open: u16,
        /// Buffers that we keep.
        kept: u16,
    },
    /// The peer acknowledged talk that we did not send.
    #[error("talk {answer} is answered, the last that was said is {said}")]
    Answer {
        /// The number that the peer acknowledges.
        answer: u16,
        /// The number of our last talk.
        said: u16,
    },
}

/// Buffers that a side keeps for talk, besides the buffers that credit is given for.
#[must_use]
pub const fn reserved_buffers(dialed: bool) -> u64 {
    if dialed { 2 } else { 1 }
}

impl ReservedBuffer {
    /// Creates the state before any talk.
    #[must_use]
    pub fn new(dialed: bool) -> Self {
        Self {
            dialed,
            ..Self::default()
        }
    }

    /// Returns whether a buffer of the peer's is free for changes.
    #[must_use]
    pub fn may_speak(&self) -> bool {
        let last = if self.dialed { self.said } else { self.changes };
        // The two numbers are within two of each other, and `heard` is never ahead.
        self.heard.wrapping_sub(last) < u16::MAX / 2
    }

    /// Returns whether an answer has to go out by itself, and may.
    #[must_use]
    pub fn answer_is_due(&self) -> bool {
        self.owes_answer && (!self.dialed || self.may_speak())
    }

    /// The answer that rides on the next frame, if it has changes.
    #[must_use]
    pub fn answer(&self) -> Option<u16> {
        (self.taken != self.answered).then_some(self.taken)
    }

    /// [`answer`](Self::answer) is in a frame.
    pub fn has_answered(&mut self) {
        self.answered = self.taken;
        self.owes_answer = false;
    }

    /// A credit report goes out: changes, or a mere answer.
    pub fn speak(&mut self, is_change: bool) {
        self.said = self.said.wrapping_add(1);
        if is_change {
            self.changes = self.said;
        }
    }

    /// The peer has taken all up to `answer`.
    pub fn hear_answer(&mut self, answer: u16) -> Result<(), ReserveOverrun> {
        let said = self.said;
        if answer.wrapping_sub(self.heard) > said.wrapping_sub(self.heard) {
            return Err(ReserveOverrun::Answer { answer, said });
        }
        self.heard = answer;
        Ok(())
    }

    /// A credit report came in: changes, or a mere answer.
    pub fn take(&mut self, is_change: bool) -> Result<(), ReserveOverrun> {
        let open = self.taken.wrapping_sub(self.answered) + 1;
        let kept = reserved_buffers(self.dialed) as u16;
        if open > kept {
            return Err(ReserveOverrun::Talk { open, kept });
        }
        self.taken = self.taken.wrapping_add(1);
        self.owes_answer |= is_change || !self.dialed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// One side, and the answers on their way to it. The flag of each answer tells whether it is
    /// changes.
    #[derive(Default)]
    struct Place {
        buffer: ReservedBuffer,
        inbox: VecDeque<(Option<u16>, bool)>,
        wishes: u32,
    }

    fn speaks(place: &mut Place) -> Option<(Option<u16>, bool)> {
        let buffer = &mut place.buffer;
        let is_change = place.wishes > 0 && buffer.may_speak();
        if !is_change && !buffer.answer_is_due() {
            return None;
        }
        place.wishes -= u32::from(is_change);
        let answer = buffer.answer();
        buffer.has_answered();
        buffer.speak(is_change);
        Some((answer, is_change))
    }

    proptest! {
        /// In any order of talk and wishes to talk, the buffers suffice, all talk is sent, and then
        /// both sides are silent.
        #[test]
        fn all_talk_is_sent_and_then_both_sides_are_silent(
            moves in proptest::collection::vec(0..6_u8, 0..300),
        ) {
            let mut places = [true, false].map(|dialed| Place {
                buffer: ReservedBuffer::new(dialed),
                ..Place::default()
            });
            let settling = [2, 3, 4, 5].repeat(400);
            for (step, what) in moves.iter().chain(&settling).enumerate() {
                let [one, other] = &mut places;
                let (here, there) = if what % 2 == 0 { (one, other) } else { (other, one) };
                match what / 2 {
                    0 => here.wishes += 1,
                    1 => {
                        if let Some(talk) = speaks(here) {
                            prop_assert!(step < moves.len() + 1500, "no silence");
                            there.inbox.push_back(talk);
                        }
                        let kept = reserved_buffers(there.buffer.dialed) as usize;
                        prop_assert!(there.inbox.len() <= kept);
                    }
                    _ => {
                        if let Some((answer, is_change)) = here.inbox.pop_front() {
                            if let Some(answer) = answer {
                                here.buffer.hear_answer(answer).unwrap();
                            }
                            here.buffer.take(is_change).unwrap();
                        }
                    }
                }
            }
            prop_assert_eq!(places.map(|place| place.wishes), [0, 0]);
        }
    }

    #[test]
    fn talk_beyond_the_buffers_and_answers_to_nothing_are_refused() {
        for dialed in [true, false] {
            let mut buffer = ReservedBuffer::new(dialed);
            for _ in 0..reserved_buffers(dialed) {
                buffer.take(true).unwrap();
            }
            assert!(buffer.take(true).is_err());
            assert!(buffer.hear_answer(1).is_err());
            buffer.speak(true);
            buffer.hear_answer(1).unwrap();
            buffer.hear_answer(1).unwrap();
            assert!(buffer.hear_answer(0).is_err());
        }
    }
}
