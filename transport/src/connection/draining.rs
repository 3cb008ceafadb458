//! A node that serves no more calls, as its sessions tell and hear of it.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use ibex_protocol::format::control::Ask;

use super::core::Core;
use crate::{
    connection::Context,
    node::{Undelivered, What},
};

impl Core {
    /// Tells the peer that this node begins no call any more.
    pub(crate) fn say_draining(&mut self) {
        self.common.session.say_draining(false);
    }

    /// Tells the peer that every call which had begun here is answered, unless the answers may
    /// have yet to come to it.
    pub(crate) fn say_drained(&mut self, undelivered: &[Undelivered]) {
        let peer = self.common.shared.peer_name();
        if undelivered.iter().all(|channel| channel.peer != peer) {
            self.common.session.say_draining(true);
        }
    }

    /// The peer has told the same of itself.
    pub(super) fn peer_drains(&mut self, is_done: bool, context: &mut Context<'_>) {
        if self.common.shared.draining.hear(is_done) {
            self.tell(What::Draining, context);
            self.common
                .shared
                .draining
                .take_waiters(&mut context.wakers);
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
                self.common.session.ask(id, Ask::received(sent));
            }
        }
    }
}
