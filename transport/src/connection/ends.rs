//! The ends of a session's channels, sending and receiving.

use std::time::Instant;

use ibex_protocol::{format::control::Role, timer::Timer};
use ibex_ring::parking::Wakers;

use super::{context::Context, core::Common, receivers::Receivers, senders::Senders, stalls};
use crate::{
    clock,
    endpoint::{
        channel_end::ChannelEnd,
        receive_end::ReceiveEnd,
        state::EndReason,
        stats::{ChannelStats, ChannelTotals},
    },
    session::{EndCause, EndLabel},
};

/// The ends that a session has here.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) senders: Senders,
    pub(crate) receivers: Receivers,
}

impl Ends {
    /// Returns all ends, receivers first.
    pub(super) fn all(&self) -> impl Iterator<Item = &ChannelEnd> {
        let receivers = self.receivers.ends.values();
        let senders = self.senders.ends.values();
        let receivers = receivers.map(|connection| -> &ChannelEnd { &connection.end });
        receivers.chain(senders.map(|connection| -> &ChannelEnd { &connection.end }))
    }

    /// Returns the label of the end of this name, if this node has it.
    pub(crate) fn label_of(&self, name: &str, role: Role) -> Option<Option<&'static EndLabel>> {
        let mut senders = self.senders.ends.iter().map(|(_, one)| &**one.end);
        let mut receivers = self.receivers.ends.iter().map(|(_, one)| &**one.end);
        let is_it = |end: &&ChannelEnd| &*end.name == name;
        let found = match role {
            Role::Sender => senders.find(is_it),
            Role::Receiver => receivers.find(is_it),
        };
        found.map(ChannelEnd::label)
    }

    /// Ends the sending and the receiving end with this id, if they exist.
    pub(super) fn end(&self, end: u32, why: EndReason, wakers: &mut Wakers) {
        if let Some(sender) = self.senders.ends.get(end) {
            sender.end.end(why.clone(), wakers);
        }
        if let Some(receiver) = self.receivers.ends.get(end) {
            receiver.end.end(why, wakers);
        }
    }

    /// Ends every end with this cause.
    pub(super) fn end_all(&self, cause: &EndCause, wakers: &mut Wakers) {
        for sender in self.senders.ends.values() {
            sender.end.end(EndReason::Cause(cause.clone()), wakers);
        }
        for receiver in self.receivers.ends.values() {
            receiver.end.end(EndReason::Cause(cause.clone()), wakers);
        }
    }

    /// Returns the counters of all channels.
    pub(super) fn stats(&self) -> Vec<ChannelStats> {
        let senders = self.senders.ends.values().map(|sender| sender.end.stats());
        let receivers = self.receivers.ends.values().map(|one| one.end.stats());
        let mut channels: Vec<_> = senders.chain(receivers).collect();
        channels.sort_by(|a, b| (&a.name, a.end).cmp(&(&b.name, b.end)));
        channels
    }

    /// Returns the counts of the ends that are gone.
    pub(super) fn gone(&self) -> ChannelTotals {
        let mut gone = self.senders.gone;
        gone += self.receivers.gone;
        gone
    }

    // ---- Ends that the peer does not open --------------------------------------------
    //
    // If a thread waits for one end, `open_timeout` ends the call with an error. A thread that
    // waits for several ends, or a task, waits on; the engine then reports the delay, once for each
    // end.

    /// Drops the deadlines of ends that have been opened, because there is nothing to report for
    /// them. Every turn checks the deadline, so none is kept without need.
    pub(super) fn forget_openings(&self, common: &mut Common) {
        if common.timers.is_set(Timer::Open) {
            common.timers.clear(Timer::Open);
            self.watch_next_opening(common);
        }
    }

    /// Reports the ends whose waits have lasted for their `open_timeout`.
    pub(super) fn check_for_openings(
        &self,
        now: Instant,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let is_due = |end: &&ChannelEnd| end.open_notice_at().is_some_and(|due| due <= now);
        let due = self.all().filter(is_due);
        let notified = due.map(|end| end.take_open_notice(&common.incoming()));
        for what in notified.collect::<Vec<_>>() {
            what.warn(&common.shared);
            common.tell(what, context);
        }
        self.watch_next_opening(common);
    }

    /// Sets the timer to the next end whose wait is to be reported.
    fn watch_next_opening(&self, common: &mut Common) {
        if let Some(next) = self.all().filter_map(ChannelEnd::open_notice_at).min() {
            common.timers.set(Timer::Open, next);
        }
    }

    // ---- Guards ----------------------------------------------------------------------

    /// Sums the cells of a receiving end at which a guard has rung. Returns whether there are changes to
    /// send.
    pub(crate) fn answer_guard(
        &mut self,
        id: u32,
        common: &mut Common,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(receiver) = self.receivers.ends.get(id) else {
            return false;
        };
        let still_asked = receiver.end.path.is_asked(&receiver.end, &common.session);
        let waits = receiver.waits_for_release();
        // Even if another question has taken the place of the one that was rung for: its sum counted
        // the cell that the receiver waits for.
        receiver.end.waiters.take(&mut context.wakers);
        if !answer_if_rung(&receiver.end, still_asked || waits) {
            return false;
        }
        let was_stalled = receiver.is_reported_stalled();
        let changes = common.session.released(id, &receiver.end.counters());
        if waits {
            self.receivers.want_large(id, common, context);
        }
        if was_stalled {
            stalls::check(self, clock::now(), common, context);
        }
        changes || waits
    }
}

/// Answers the sender if a guard of the receiving end has rung. `still_asked` keeps the guards
/// ringing for a later answer.
fn answer_if_rung(end: &ReceiveEnd, still_asked: bool) -> bool {
    if !end.cells.has_rung() {
        return false;
    }
    if still_asked {
        end.answer_ask();
    } else {
        end.hush();
        end.advance(true);
    }
    true
}
