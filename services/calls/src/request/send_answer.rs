//! An answer of a task on its way into its channel.

use std::{future::poll_fn, task::Poll};

use ibex_core::{SendError, extend::parking::Ticket};

use super::Call;
use crate::{
    error::answers as errors,
    frame::Content,
    header::{Header, Kind},
    outbox::{Outbox, Unsent},
};

/// Says what the sending of an answer means for its handler.
pub(super) fn sent(sent: Result<(), Unsent>) -> Result<(), SendError> {
    match sent {
        Ok(()) => Ok(()),
        // The caller's end is gone, and so is the caller that waits.
        Err(Unsent::Late | Unsent::InVain) => Err(errors::cancelled()),
        Err(Unsent::Failed(error)) if error.cause().is_some() => Err(errors::cancelled()),
        Err(Unsent::Failed(error)) => Err(errors::of_answer(error)),
    }
}

impl Call {
    /// Sends an item of a stream. Waits while the channel of replies is full.
    #[inline]
    pub(super) fn send_item(&self, item: impl Content) -> Result<(), SendError> {
        let Some(outbox) = self.client.outbox() else {
            return Err(errors::cancelled());
        };
        let header = || {
            let is_wanted = !self.client.is_cancelled(self.id);
            is_wanted.then(|| Header::new(self.id, Kind::Item))
        };
        sent(outbox.send(header, item, self.deadline))
    }

    /// Sends an item of a stream, for a task.
    pub(super) async fn send_item_async(&self, item: impl Content) -> Result<(), SendError> {
        let Some(outbox) = self.client.outbox() else {
            return Err(errors::cancelled());
        };
        if self.client.is_cancelled(self.id) {
            return Err(errors::cancelled());
        }
        let mut room = RoomWait(outbox, None);
        poll_fn(|context| {
            let header = || Header::new(self.id, Kind::Item);
            let polled = outbox.poll_send(&mut room.1, context.waker(), header, item);
            if polled.is_pending() {
                // A caller that does not take its replies may cancel, which wakes this task.
                self.client.set_waker(self.id, Some(context.waker()));
                if self.client.is_cancelled(self.id) {
                    return Poll::Ready(Err(errors::cancelled()));
                }
            }
            polled.map(sent)
        })
        .await
    }
}

/// A task's wait for room, which ends when this is dropped.
struct RoomWait<'a>(&'a Outbox, Option<Ticket>);

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        self.0.leave(&mut self.1);
    }
}
