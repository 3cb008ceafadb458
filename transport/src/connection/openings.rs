//! Ends that the peer does not open while somebody waits for them.
//!
//! Where one end is waited for, `open_timeout` ends the call with an error that says so. Who
//! waits for several, or is a task, waits on; then the engine tells of it, once for each end.

use std::time::Instant;

use ibex_protocol::timer::Timer;

use super::core::Core;
use crate::{connection::Context, endpoint::channel_end::ChannelEnd};

impl Core {
    /// An end that somebody waits for is to be looked at by then. Returns whether that is
    /// sooner than anything else of the session.
    pub(crate) fn watch_opening(&mut self, due: Instant) -> bool {
        let is_sooner = self.common.timers.next().is_none_or(|next| due < next);
        self.common.timers.set_sooner(Timer::Open, due);
        is_sooner
    }

    /// Ends have been opened, which nobody has to be told of any more. A deadline costs every
    /// turn a look, so none is kept for them.
    pub(super) fn forget_openings(&mut self) {
        if self.common.timers.is_set(Timer::Open) {
            self.common.timers.clear(Timer::Open);
            self.watch_next_opening();
        }
    }

    /// Tells of those that have been waited for as long as their `open_timeout`.
    pub(super) fn look_for_openings(&mut self, now: Instant, context: &mut Context<'_>) {
        let is_due = |end: &&ChannelEnd| end.open_notice_at().is_some_and(|due| due <= now);
        let due = self.ends().filter(is_due);
        let told = due.map(|end| end.take_open_notice(&self.incoming()));
        for what in told.collect::<Vec<_>>() {
            what.warn(&self.common.shared);
            self.tell(what, context);
        }
        self.watch_next_opening();
    }

    /// The next end that somebody waits for and nobody was told of.
    fn watch_next_opening(&mut self) {
        if let Some(next) = self.ends().filter_map(ChannelEnd::open_notice_at).min() {
            self.common.timers.set(Timer::Open, next);
        }
    }

    fn ends(&self) -> impl Iterator<Item = &ChannelEnd> {
        let receivers = self.receivers.values();
        let senders = self.senders.values();
        let receivers = receivers.map(|link| -> &ChannelEnd { &link.end });
        receivers.chain(senders.map(|link| -> &ChannelEnd { &link.end }))
    }
}
