//! What a session has to send besides records and changes: control messages, and what follows from the
//! session's own state.
//!
//! - Control messages go out in the order in which they were queued, a question in the place of an
//!   older one for the same end.
//! - Ends say something only over live wires. What was queued for wires that broke is dropped: it
//!   [follows again](super::resume) from the state of the ends.
//! - A goodbye is sent once over each wire.
#![forbid(unsafe_code)]

use std::{collections::VecDeque, sync::Arc};

use super::resume::{Stage, lone_frame};
use crate::format::control::{Ask, Control};

#[cfg(test)]
mod tests;

/// What a session has to send besides records and changes: control messages, the goodbye, answers.
#[derive(Debug)]
pub struct ControlQueue {
    /// The stage between old wires and new ones.
    pub(super) stage: Stage,
    pub(super) control: VecDeque<Control>,
    /// The control message that is being framed.
    pub(super) control_body: Vec<u8>,
    /// The number of questions for any answer that are still to be sent.
    queries: u32,
    /// The number of the peer's questions that are still to be answered.
    answers: u32,
    goodbye: Goodbye,
    /// The program's reason to end this session alone, which the goodbye carries.
    reason: Option<Arc<str>>,
    /// The peer is notified that this node drains, and whether it has.
    draining: Option<bool>,
    /// The number of times that bytes of the peer's were damaged on their way.
    damaged: u64,
    /// Set if a frame may have to go out for something other than records, or with it. Every change
    /// that may lead to that sets the flag; a check that finds nothing clears it.
    pub(super) has_errands: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    NotDue,
    Due,
    Said,
}

impl ControlQueue {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Live,
            control: VecDeque::new(),
            control_body: Vec::new(),
            queries: 0,
            answers: 0,
            goodbye: Goodbye::NotDue,
            reason: None,
            draining: None,
            damaged: 0,
            has_errands: false,
        }
    }

    /// Frees the memory of empty queues.
    pub(super) fn rest(&mut self) {
        self.control.shrink_to_fit();
        self.control_body = Vec::new();
    }

    // ---- Wishes ----------------------------------------------------------------------

    /// Queues a control message, unless the message will follow from the state of the ends when the
    /// peer was received.
    pub(super) fn say(&mut self, control: Control) {
        self.has_errands = true;
        if self.stage.is_live() {
            self.control.push_back(control);
        }
    }

    /// Asks the peer, in the place of a question that is still to go out.
    pub(super) fn ask(&mut self, end: u32, ask: Ask) {
        let queued = self.control.iter_mut().find_map(|control| match control {
            Control::Ask { channel, ask } if *channel == end => Some(ask),
            _ => None,
        });
        match queued {
            Some(queued) => *queued = ask,
            None => self.say(Control::Ask { channel: end, ask }),
        }
        self.has_errands = true;
    }

    /// Asks the peer `times` times for any answer, which it gives as soon as it runs.
    pub fn query(&mut self, times: u32) {
        self.has_errands = true;
        self.queries = self.queries.saturating_add(times);
    }

    /// Answers a question of the peer's for any answer.
    pub(super) fn answer(&mut self) {
        self.answers = self.answers.saturating_add(1).min(MOST_ANSWERS);
    }

    /// Notes that bytes of the peer's were damaged on their way, so that its frames are of no use
    /// any more. The peer is notified over the next wires, because over these the end of the connection
    /// would often come first.
    pub fn found_damage(&mut self) {
        self.damaged = self.damaged.saturating_add(1);
    }

    /// Says goodbye once everything published is on its way. The goodbye carries the `reason` for
    /// which the program ends this session alone, if it does; the first call decides.
    pub fn say_goodbye(&mut self, reason: Option<Arc<str>>) {
        if self.goodbye == Goodbye::NotDue {
            self.goodbye = Goodbye::Due;
            self.reason = reason;
            self.has_errands = true;
        }
    }

    /// Returns the program's reason to end this session alone, which the goodbye carries.
    #[must_use]
    pub fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// Returns whether the goodbye is to be sent, as soon as nothing else is.
    pub(super) fn goodbye_is_due(&self) -> bool {
        self.goodbye == Goodbye::Due
    }

    /// Returns whether the goodbye is in a frame: nothing more will be sent.
    #[must_use]
    pub fn sent_goodbye(&self) -> bool {
        self.goodbye == Goodbye::Said
    }

    /// Tells the peer that no call begins here any more, and with `is_done` that all calls that had
    /// begun are answered. Poll transmissions afterwards.
    pub fn say_draining(&mut self, is_done: bool) {
        if Some(is_done) > self.draining {
            self.draining = Some(is_done);
            self.control.push_back(Control::Draining { is_done });
            self.has_errands = true;
        }
    }

    // ---- Frames ----------------------------------------------------------------------

    /// Returns whether a frame is to go out for any of this.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.control.is_empty() || self.queries > 0 || self.answers > 0 || self.goodbye_is_due()
    }

    /// Takes what goes into the next control frame: a message, or nothing in a frame that is only
    /// an answer.
    pub(super) fn next(&mut self) -> Option<Option<Control>> {
        if let Some(control) = self.control.pop_front() {
            return Some(Some(control));
        }
        if self.queries > 0 {
            self.queries -= 1;
            return Some(Some(Control::Query));
        }
        if self.answers > 0 {
            self.answers -= 1;
            return Some(None);
        }
        None
    }

    /// Returns the goodbye that is due as a frame, for a session that ends now, whatever has not been
    /// sent. `None` if none is due any more.
    #[must_use]
    pub fn say_goodbye_now(&mut self) -> Option<Vec<u8>> {
        self.goodbye_is_due()
            .then(|| lone_frame(&self.take_goodbye()))
    }

    /// Takes the goodbye into a frame.
    pub(super) fn take_goodbye(&mut self) -> Control {
        self.goodbye = Goodbye::Said;
        Control::Goodbye {
            reason: self.reason.clone(),
        }
    }

    // ---- New wires -------------------------------------------------------------------

    /// Returns whether the session is without wires.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        matches!(self.stage, Stage::Suspended)
    }

    /// Drops what was to go out over wires that are gone.
    pub(super) fn suspend(&mut self) {
        self.stage = Stage::Suspended;
        self.has_errands = true;
        self.control.clear();
        (self.queries, self.answers) = (0, 0);
    }

    /// Begins the exchange over new wires.
    pub(super) fn resume(&mut self) {
        self.stage = Stage::Resuming(Default::default());
        self.has_errands = true;
        if self.damaged > 0 {
            let times = self.damaged;
            self.control.push_back(Control::Damaged { times });
        }
    }

    /// Sends again, behind the exchange, what the peer may not have received over the old wires.
    pub(super) fn repeat(&mut self) {
        if self.goodbye == Goodbye::Said {
            self.goodbye = Goodbye::Due;
        }
        if let Some(is_done) = self.draining {
            self.control.push_back(Control::Draining { is_done });
            self.has_errands = true;
        }
    }
}

/// Answers that wait to be sent. Further questions of the peer need no answer of their own.
const MOST_ANSWERS: u32 = 1 << 16;
