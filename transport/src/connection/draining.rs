//! Draining: the announcements of a node that serves no more calls.
#![forbid(unsafe_code)]

use super::core::Common;
use crate::{
    connection::Context,
    node::{Undelivered, What},
};

impl Common {
    /// Tells the peer that this node begins no more calls.
    pub(crate) fn say_draining(&mut self) {
        self.session.outgoing.say_draining(false);
    }

    /// Tells the peer that every call which had begun here is answered, unless answers to it may
    /// still be undelivered.
    pub(crate) fn say_drained(&mut self, undelivered: &[Undelivered]) {
        let peer = self.shared.peer_name();
        if undelivered.iter().all(|channel| channel.peer != peer) {
            self.session.outgoing.say_draining(true);
        }
    }

    /// Notes that the peer announced that it drains, or has drained.
    pub(super) fn peer_drains(&mut self, is_done: bool, context: &mut Context<'_>) {
        if self.shared.draining.hear(is_done) {
            self.tell(What::Draining, context);
            self.shared.draining.take_waiters(&mut context.wakers);
        }
    }
}
