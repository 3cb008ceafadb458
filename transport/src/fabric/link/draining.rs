//! A node that serves no more calls, as its sessions tell and hear of it.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::Link;
use crate::{
    driver::{Context, What},
    engine::control::Ask,
};

impl Link {
    /// Tells the peer that this node drains, and with `is_done` that it has answered what it had
    /// begun.
    pub(crate) fn say_draining(&mut self, is_done: bool) {
        self.session.say_draining(is_done);
    }

    /// The peer has told the same of itself.
    pub(super) fn peer_drains(&mut self, is_done: bool, context: &mut Context<'_>) {
        if self.shared.draining.hear(is_done) {
            self.tell(What::Draining, context);
        }
    }

    /// Asks the peer how far it is with all that was sent.
    pub(crate) fn ask_for_all(&mut self) {
        if self.local.is_some() {
            // It says so in memory that is shared.
            return;
        }
        for (id, sender) in self.senders.iter() {
            let sent = sender.end.sent.load(Ordering::Acquire);
            if sent > sender.end.counts().received {
                self.session.ask(id, Ask::received(sent));
            }
        }
    }
}
