//! The path of a receiving end's messages: the sender's ring, in memory that both processes map, or
//! frames that this node's engine puts in arrival blocks.
//!
//! An end has its path from the beginning, and keeps it when the session's wire is replaced. Here are
//! the decisions of a receiving end that depend on its path, and no other file names its cases. The
//! handle's own part, where it finds records, is its `SourceOffer`.

use std::sync::atomic::Ordering;

use ibex_protocol::session::Session;
use ibex_ring::{
    Arm, ArmedWord, Prefix,
    end_status::{ReceiverWords, Words},
};

use super::receive_end::ReceiveEnd;

/// The path of a receiving end's messages.
#[derive(Debug)]
pub(crate) enum ReceivePath {
    /// The handle reads the sender's ring, and the sender reads these words.
    Mapped(Words<ReceiverWords>),
    /// The engine delivers frames, and tells the sender of the counters.
    Framed,
}

impl ReceivePath {
    /// Returns the path of an end with these `words` in shared memory, or without any.
    pub(crate) fn new(words: Option<Words<ReceiverWords>>) -> Self {
        words.map_or(Self::Framed, Self::Mapped)
    }

    // ---- Progress, as the sender learns of it -------------------------------------------

    /// Publishes the prefix in the words that the sender reads. Called under the advance lock.
    pub(super) fn publish(&self, end: &ReceiveEnd, prefix: &Prefix) {
        if let Self::Mapped(words) = self {
            words.report(&end.counters_of(prefix));
        }
    }

    /// Tells the sender what it waits for. `idle` says that the handle is about to sleep, and
    /// `moved` that the prefix has moved.
    pub(super) fn tell(&self, end: &ReceiveEnd, idle: bool, moved: bool) {
        match self {
            Self::Mapped(_) => self.ring_sender(end, moved),
            Self::Framed => end.mark_progress(idle, moved),
        }
    }

    /// Rings for a sender that waits, and that reads the counters itself.
    fn ring_sender(&self, end: &ReceiveEnd, moved: bool) {
        // The sender looked again before it slept, so it has seen counters that have not moved
        // since. Ringing for them would make the two processes wake each other without end.
        if !moved {
            return;
        }
        // ASKED, pairs with the barrier in `Asking::ask`: either this thread sees the question, or
        // the sender's second check sees the counters.
        let (theirs, asymmetry) = (end.theirs.get(), end.session.asymmetry());
        if theirs.is_some_and(|theirs| theirs.asked.generation_behind(asymmetry) != 0) {
            end.session.ring_peer();
        }
    }

    /// Tells the sender which messages were released and acknowledged, where that takes no frame. A
    /// wait that finds nothing at once calls this, because the sender may be waiting for it.
    pub(crate) fn keep_nothing_back(&self, end: &ReceiveEnd) {
        if let Self::Mapped(_) = self {
            end.advance(true);
        }
    }

    // ---- Waits of the handle -----------------------------------------------------------

    /// Asks the sender to ring when it publishes a message. Over a wire, the engine wakes the
    /// waiters of each message that arrives.
    pub(crate) fn arm(&self, end: &ReceiveEnd, arm: &mut Arm) {
        if let Self::Mapped(words) = self {
            arm.arm(&words.armed, end.session.asymmetry());
        }
    }

    /// Notes that the handle has handed out this many messages by now, and is awake.
    pub(crate) fn stay_awake(&self, arm: &mut Arm, handed_out: u64) {
        if let Self::Mapped(words) = self {
            arm.stay_awake(&words.armed, handed_out);
        }
    }

    /// Withdraws that request.
    pub(crate) fn disarm(&self, arm: &mut Arm) {
        if let Self::Mapped(words) = self {
            arm.disarm(&words.armed);
        }
    }

    /// Tells a sender that reads this end's words that the handle is gone.
    pub(crate) fn close_words(&self) {
        if let Self::Mapped(words) = self {
            words.close();
        }
    }

    // ---- Steps of the engine -----------------------------------------------------------

    /// Returns whether the sender waits for the application of this end.
    pub(crate) fn is_asked(&self, end: &ReceiveEnd, session: &Session) -> bool {
        match (self, end.theirs.get()) {
            (Self::Mapped(_), Some(theirs)) => theirs.asked.generation() != 0,
            _ => session.ends.is_asked(end.id),
        }
    }

    /// Returns whether the sender waits for room.
    pub(crate) fn is_room_wanted(&self, end: &ReceiveEnd, session: &Session) -> bool {
        match (self, end.theirs.get()) {
            (Self::Mapped(_), Some(theirs)) => theirs.wants_room.load(Ordering::Relaxed) != 0,
            _ => session.ends.wants_room(end.id),
        }
    }

    /// Notes the peer's message that the channel ends in order after message `last`. In shared
    /// memory the peer's own word announces that, and may be ahead of this message.
    pub(crate) fn sender_closed(&self, end: &ReceiveEnd, last: u64) {
        if let (Self::Framed, Some(theirs)) = (self, end.theirs.get()) {
            theirs.close(last);
        }
    }

    /// Returns how many messages were taken that no connection has carried.
    pub(crate) fn taken_beside_wire(&self, end: &ReceiveEnd) -> u64 {
        match self {
            Self::Mapped(_) => end.handed_out.load(Ordering::Relaxed),
            Self::Framed => 0,
        }
    }

    /// Returns the words that the sender may read after the end is closed.
    pub(crate) fn words(&self) -> Option<Words<ReceiverWords>> {
        match self {
            Self::Mapped(words) => Some(words.clone()),
            Self::Framed => None,
        }
    }

    /// Returns whether the sender has rung for the present arming, or has closed its end.
    /// Called when the peer has rung.
    pub(crate) fn was_rung(&self, end: &ReceiveEnd) -> bool {
        match (self, end.theirs.get()) {
            (Self::Mapped(words), Some(theirs)) => {
                theirs.rung.is_for(&words.armed) || theirs.closed_at().is_some()
            }
            _ => false,
        }
    }

    /// Arms the end, unless a thread or task waits or the present arming is not spent. Returns
    /// whether it did; a heavy barrier must follow. `last` is the last arming that this has made.
    ///
    /// The word belongs to the handle, which may be arming it at this moment on another thread. So
    /// the word is replaced only if it still has the value seen here, which is spent and has no
    /// waiter. Half of the generations is reserved for this function, so that no
    /// generation occurs twice.
    pub(crate) fn arm_for_caller(&self, end: &ReceiveEnd, last: &mut u32) -> bool {
        let (Self::Mapped(words), Some(theirs)) = (self, end.theirs.get()) else {
            return false;
        };
        let armed = &words.armed;
        let seen = armed.generation();
        let is_spent = seen == 0 || theirs.rung.is_for(armed);
        if !is_spent || end.waiters.is_waiting() {
            return false;
        }
        let next = (last.wrapping_add(1) % ArmedWord::IN_PLACE) | ArmedWord::IN_PLACE;
        *last = next;
        armed.replace(seen, next)
    }
}
