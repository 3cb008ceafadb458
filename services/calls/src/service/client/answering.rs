//! Answers on their way to a caller, for which a handler waits a moment at most.
//!
//! An answer that finds no room is queued ([`Outbox`](crate::outbox::Outbox)). While one waits there, the
//! service takes no frame of this caller in, so that the queue holds no more than the answers to
//! what handlers have already. A caller that makes no room for any of them within the node's
//! `session_timeout` is given up.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::{Duration, Instant},
};

use ibex_core::extend::{lock, warn_limited};

use super::Client;
use crate::{
    error::Refused,
    frame::Content,
    header::{CallId, Header, Kind},
    outbox::{NoRoom, Unsent},
};

impl Client {
    /// Sends a reply, or queues it if no room comes for it within `patience`.
    #[inline]
    pub(crate) fn answer(
        self: &Arc<Self>,
        id: CallId,
        content: impl Content,
        patience: Duration,
    ) -> Result<(), Unsent> {
        let header = || (!self.is_cancelled(id)).then(|| Header::new(id, Kind::Reply));
        let most = self.service.template.max_message_bytes();
        let sent = self.outbox.answer(header, content, most, patience);
        if self.outbox.has_notices() {
            self.stay_while_notices_wait();
        }
        sent
    }

    /// Tells the caller, without waiting, that a call has ended.
    pub(crate) fn notify(self: &Arc<Self>, header: Header, payload: Vec<u8>) {
        self.outbox.notify(header, payload);
        self.stay_while_notices_wait();
    }

    /// Keeps this client for as long as notices wait for the channel, whose room or end calls the
    /// client's waker. The one who sends the last one looks after that, so it finds what this call
    /// leaves.
    fn stay_while_notices_wait(self: &Arc<Self>) {
        let mut held = lock(&self.held_by_notices);
        let stays = self.outbox.has_channel() && self.has_pending_notices();
        let _before = mem::replace(&mut *held, stays.then(|| self.clone()));
        drop(held);
        let limit = self.session.node().session_timeout();
        if stays && let Some(at) = self.outbox.next_check(limit) {
            self.session.wake_at(at, &self.waker);
        }
    }

    /// Returns whether notices for a caller that is still there wait to be sent.
    pub(crate) fn has_pending_notices(&self) -> bool {
        !self.calls().is_gone && !self.session.is_over() && self.outbox.has_notices()
    }

    /// Gives a request back that no handler got.
    pub(crate) fn refuse(self: &Arc<Self>, id: CallId, reason: Refused) {
        self.service.refused.fetch_add(1, Ordering::Relaxed);
        let header = Header::new(id, Kind::Refused).with_count(reason.0);
        self.notify(header, Vec::new());
    }

    /// Sends waiting notices, because there is room, and wakes handlers whose deadlines have
    /// passed.
    pub(super) fn woken(self: &Arc<Self>) {
        self.outbox.has_room();
        self.stay_while_notices_wait();
        self.give_up_if_blocked();
        let (late, next) = self.calls().expire(Instant::now());
        late.into_iter().for_each(Waker::wake);
        if let Some(next) = next {
            self.session.wake_at(next, &self.waker);
        }
    }

    // ---- A caller that takes nothing -----------------------------------------------------

    /// Gives the caller up if it has made no room for too long.
    fn give_up_if_blocked(&self) {
        let limit = self.session.node().session_timeout();
        match self.outbox.check_room(Instant::now(), limit) {
            None => {}
            Some(NoRoom::CheckAt(at)) => {
                self.session.wake_at(at, &self.waker);
            }
            Some(NoRoom::TooLong) => {
                warn_limited!(
                    format_args!("{}: {limit:?}", self.at),
                    peer = %self.at, ?limit,
                    "a caller does not take the replies of a service; its calls are given up"
                );
                self.outbox.break_off();
                self.is_gone();
            }
        }
    }
}
