//! Stalls: receivers whose sender waits for room, receivers that lack room for a message, and tasks
//! of this process that wait for room. The engine reports them when nothing was released for a
//! while.
//!
//! A sender that waits says so, by a frame or in shared memory, and the engine answers it. If the
//! answer changes nothing, the released count is noted here and one timer of the session looks
//! again. No clock is read for a sender that makes progress.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_protocol::{format::control::Role, timer::Timer};

use super::{
    core::Common,
    ends::Ends,
    receivers::{ReceiveLink, Receivers},
};
use crate::{
    clock,
    connection::Context,
    endpoint::stall::NOTICE,
    node::{Stalled, What},
};
use ibex_ring::end_status::SenderWords;

/// A sender's wait, as its receiver sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiverStall {
    since: Instant,
    /// Messages released when the wait began.
    released: u64,
    is_told: bool,
    /// The wait was reported as one for room within `memory_limit`.
    lacked_room: bool,
}

impl ReceiveLink {
    /// Returns whether the sender's wait was reported and its end was not.
    pub(super) fn is_told_stalled(&self) -> bool {
        self.stall.is_some_and(|stall| stall.is_told)
    }

    /// Notes that the sender waits for room.
    pub(super) fn room_is_wanted(&mut self, now: Instant) {
        let released = self.end.prefix.prefix().released;
        // A reported wait is kept until its end is reported.
        let goes_on = |stall: ReceiverStall| stall.is_told || stall.released == released;
        if !self.stall.is_some_and(goes_on) {
            self.stall = Some(ReceiverStall {
                since: now,
                released,
                is_told: false,
                lacked_room: false,
            });
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
    /// Schedules a look at `due` at an end whose open is waited for. Returns whether that is sooner
    /// than every other deadline of the session.
    pub(crate) fn watch_opening(&mut self, due: Instant) -> bool {
        let is_sooner = self.timers.next().is_none_or(|next| due < next);
        self.timers.set_sooner(Timer::Open, due);
        is_sooner
    }

    /// Schedules a look at stalls, because a task of this process waits for room and does not wake
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
pub(super) fn look(ends: &mut Ends, now: Instant, common: &mut Common, context: &mut Context<'_>) {
    let mut next: Option<Instant> = None;
    let mut told = Vec::new();
    for (id, receiver) in ends.receivers.ends.iter_mut() {
        let waits_for_release = receiver.waits_for_release();
        let Some(stall) = &mut receiver.stall else {
            continue;
        };
        let end = &receiver.end;
        let lacks_room = end.lacks_room.load(Ordering::Relaxed);
        let is_wanted = lacks_room
            || match end.theirs.get() {
                Some(theirs) if common.shares_memory => wants_room(theirs),
                _ => common.session.wants_room(id) || waits_for_release,
            };
        let released = end.prefix.prefix().released;
        let handed_out = end.handed_out.load(Ordering::Relaxed);
        if !is_wanted || released != stall.released {
            // A sender that has given up waiting has not continued.
            let goes_on = released != stall.released || stall.lacked_room;
            if stall.is_told && goes_on {
                told.push(What::Recovered {
                    channel: end.name.to_string(),
                    end: Role::Receiver,
                    stalled: now.saturating_duration_since(stall.since),
                });
            }
            receiver.stall = None;
            continue;
        }
        let due = stall.since + NOTICE;
        if due <= now && !stall.is_told {
            (stall.is_told, stall.lacked_room) = (true, lacks_room);
            told.push(What::Stalled(Stalled {
                channel: end.name.to_string(),
                end: Role::Receiver,
                since: stall.since,
                oldest: released + 1,
                held: Some(handed_out.saturating_sub(released)),
                lacks_room,
            }));
        }
        let look = if stall.is_told { now + TICK } else { due };
        next = Some(next.map_or(look, |next| next.min(look)));
    }
    for sender in ends.senders.ends.values() {
        let end = &sender.end;
        let Some(due) = end.stall.notice_at() else {
            continue;
        };
        if due > now {
            next = Some(next.map_or(due, |next| next.min(due)));
        } else if end.stall.goes_on(end.counts().released) {
            told.extend(end.take_notice());
        }
    }
    if let Some(next) = next {
        common.timers.set(Timer::Stall, next);
    }
    for what in told {
        what.warn(&common.shared);
        common.tell(what, context);
    }
}

/// Returns whether the sender's words in shared memory say that it waits for room.
pub(super) fn wants_room(theirs: &SenderWords) -> bool {
    theirs.wants_room.load(Ordering::Relaxed) != 0
}

/// Greatest delay of the report of a stall's end, if no guard rings for it.
const TICK: Duration = Duration::from_millis(250);
