//! An answer of a task on its way into its channel.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ibex_codec::Codec;
use ibex_ring::parking::Ticket;

use super::Call;
use crate::{
    SendError,
    calls::{
        frame::Value,
        header::{Header, Kind},
        outbox::Unsent,
    },
};

/// Says what the sending of an answer means for its handler.
pub(super) fn sent(sent: Result<(), Unsent>) -> Result<(), SendError> {
    match sent {
        Ok(()) => Ok(()),
        // The caller's end is gone, and so is the caller that waits.
        Err(Unsent::Late | Unsent::InVain) => Err(SendError::cancelled()),
        Err(Unsent::Failed(error)) if error.cause().is_some() => Err(SendError::cancelled()),
        Err(Unsent::Failed(error)) => Err(SendError::of_answer(error)),
    }
}

/// An answer on its way into its channel, of a task.
pub(super) struct SendAnswer<'a, R: ?Sized, C> {
    pub(super) call: &'a Call,
    pub(super) kind: Kind,
    pub(super) value: &'a R,
    /// Waits for room.
    pub(super) room: Option<Ticket>,
    pub(super) _codec: PhantomData<fn() -> C>,
}

impl<R: ?Sized, C: Codec<R>> Future for SendAnswer<'_, R, C> {
    type Output = Result<(), SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(outbox) = this.call.client.outbox() else {
            return Poll::Ready(Err(SendError::cancelled()));
        };
        let header = || Header::new(this.call.id, this.kind);
        let value = Value::<R, C>::new(this.value);
        let polled = outbox.poll_send(&mut this.room, context.waker(), header, value);
        if polled.is_pending() {
            // A caller that does not take its replies may cancel, which wakes this task.
            this.call
                .client
                .set_waker(this.call.id, Some(context.waker()));
            if this.call.client.is_cancelled(this.call.id) {
                return Poll::Ready(Err(SendError::cancelled()));
            }
        }
        Poll::Ready(sent(ready!(polled)))
    }
}

impl<R: ?Sized, C> Drop for SendAnswer<'_, R, C> {
    fn drop(&mut self) {
        if let Some(outbox) = self.call.client.outbox() {
            outbox.leave(&mut self.room);
        }
    }
}
