//! Stalls: receivers whose sender waits for room, receivers that lack room for a message, and tasks
//! of this process that wait for room. The engine reports them when nothing was released for a
//! while.
//!
//! A sender that waits says so, by a frame or in shared memory, and the engine answers it. If the
//! answer changes nothing, the released count is noted here and one timer of the session looks
//! again. No clock is read for a sender that makes progress.

use std::{
    mem,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_protocol::{format::control::Role, timer::Timer};

use super::{
    core::Common,
    ends::Ends,
    receivers::{ReceiverState, Receivers},
};
use crate::{
    clock,
    connection::Context,
    endpoint::stall::NOTICE,
    node::{Stalled, What},
};

/// A sender's wait, as its receiver sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiverStall {
    since: Instant,
    /// Messages released when the wait began.
    released: u64,
    is_notified: bool,
    /// The wait was reported as one for room within `memory_limit`.
    lacked_room: bool,
    /// The last check found nobody waiting, and the sender has not asked since.
    is_unwanted: bool,
}

impl ReceiverStall {
    fn new(since: Instant, released: u64) -> Self {
        Self {
            since,
            released,
            is_notified: false,
            lacked_room: false,
            is_unwanted: false,
        }
    }

    /// Returns whether the wait goes on, for a check that finds `released` messages and a sender that
    /// waits, if `is_wanted`.
    ///
    /// A sender that waits in several calls, one after the other, waits for nothing in between. So
    /// the wait is over only when two checks in a row find nobody, or when something was released.
    fn goes_on(&mut self, released: u64, is_wanted: bool) -> bool {
        let was_unwanted = mem::replace(&mut self.is_unwanted, !is_wanted);
        released == self.released && (is_wanted || !was_unwanted)
    }
}

impl ReceiverState {
    /// Returns whether the sender's wait was reported and its end was not.
    pub(super) fn is_reported_stalled(&self) -> bool {
        self.stall.is_some_and(|stall| stall.is_notified)
    }

    /// Notes that the sender waits for room.
    pub(super) fn room_is_wanted(&mut self, now: Instant) {
        let released = self.end.prefix.prefix().released;
        // A reported wait is kept until its end is reported.
        let goes_on = |stall: ReceiverStall| stall.is_notified || stall.released == released;
        match &mut self.stall {
            Some(stall) if goes_on(*stall) => stall.is_unwanted = false,
            stall => *stall = Some(ReceiverStall::new(now, released)),
        }
    }
}

impl Receivers {
    /// Notes that the sender of `end`, or a message that it sent, waits for room.
    pub(super) fn room_is_wanted(&mut self, end: u32, common: &mut Common) {
        if let Some(receiver) = self.ends.get_mut(end) {
            let now = clock::now();
            receiver.room_is_wanted(now);
            common.timers.set_sooner(Timer::Stall, now + NOTICE);
        }
    }
}

impl Common {
    /// Schedules a check at `due` of an end whose open is waited for. Returns whether that is sooner
    /// than every other deadline of the session.
    pub(crate) fn watch_opening(&mut self, due: Instant) -> bool {
        let is_sooner = self.timers.next().is_none_or(|next| due < next);
        self.timers.set_sooner(Timer::Open, due);
        is_sooner
    }

    /// Schedules a check of stalls, because a task of this process waits for room and does not wake
    /// up to report that itself. Returns whether the deadline is new.
    pub(crate) fn watch_stalls(&mut self) -> bool {
        let is_new = !self.timers.is_set(Timer::Stall);
        if is_new {
            self.timers.set(Timer::Stall, clock::now() + NOTICE);
        }
        is_new
    }
}

/// Reports ends that have waited for long, and ends that continue after such a wait.
pub(super) fn check(ends: &mut Ends, now: Instant, common: &mut Common, context: &mut Context<'_>) {
    let mut next: Option<Instant> = None;
    let mut notified = Vec::new();
    for receiver in ends.receivers.ends.values_mut() {
        let waits_for_release = receiver.waits_for_release();
        let Some(stall) = &mut receiver.stall else {
            continue;
        };
        let end = &receiver.end;
        let lacks_room = end.lacks_room.load(Ordering::Relaxed);
        let is_wanted =
            lacks_room || waits_for_release || end.path.is_room_wanted(end, &common.session);
        let released = end.prefix.prefix().released;
        let handed_out = end.handed_out.load(Ordering::Relaxed);
        if !stall.goes_on(released, is_wanted) {
            // A sender that has given up waiting has not continued.
            let goes_on = released != stall.released || stall.lacked_room;
            if stall.is_notified && goes_on {
                notified.push(What::Recovered {
                    channel: end.name.to_string(),
                    end: Role::Receiver,
                    stalled: now.saturating_duration_since(stall.since),
                });
            }
            receiver.stall = None;
            continue;
        }
        let due = stall.since + NOTICE;
        if due <= now && is_wanted && !stall.is_notified {
            (stall.is_notified, stall.lacked_room) = (true, lacks_room);
            notified.push(What::Stalled(Stalled {
                channel: end.name.to_string(),
                end: Role::Receiver,
                since: stall.since,
                oldest: released + 1,
                held: Some(handed_out.saturating_sub(released)),
                lacks_room,
                suspended: None,
            }));
        }
        let polls_again = stall.is_notified || due <= now;
        let check = if polls_again { now + TICK } else { due };
        next = Some(next.map_or(check, |next| next.min(check)));
    }
    for sender in ends.senders.ends.values() {
        let end = &sender.end;
        let Some(due) = end.stall.notice_at() else {
            continue;
        };
        if due > now {
            next = Some(next.map_or(due, |next| next.min(due)));
        } else if end.is_stalled() {
            notified.extend(end.take_notice());
        }
    }
    if let Some(next) = next {
        common.timers.set(Timer::Stall, next);
    }
    for what in notified {
        what.warn(&common.shared);
        common.tell(what, context);
    }
}

/// Greatest delay of the report of a stall's end, if no guard rings for it, and the time to another
/// look at a sender that was not found waiting.
const TICK: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn stall() -> ReceiverStall {
        ReceiverStall::new(clock::start(), 7)
    }

    #[test]
    fn a_wait_is_not_over_because_one_look_finds_nobody() {
        let mut stall = stall();
        for _ in 0..3 {
            assert!(stall.goes_on(7, true));
            assert!(stall.goes_on(7, false), "between two calls of the sender");
        }
        assert!(!stall.goes_on(7, false), "nobody waits");
    }

    #[test]
    fn a_release_ends_a_wait_at_once() {
        for is_wanted in [true, false] {
            assert!(!stall().goes_on(8, is_wanted));
        }
    }
}
