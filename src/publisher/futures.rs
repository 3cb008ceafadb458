//! Futures of publishers.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use ibex_codec::Codec;

use super::{Publisher, Topic, subscriptions::Subscriptions};
use crate::{SendError, group::GroupValue};

/// A wait for a publisher's subscribers. Dropping it takes back what it left with them.
struct TopicWait<'a, F> {
    topic: &'a Topic,
    poll: F,
}

impl<T: ?Sized, C: Codec<T>> Publisher<T, C> {
    /// Sends a message in a task. Pending while the window of a subscriber is full.
    ///
    /// If the future is dropped before it is ready, no subscriber gets the message. It has no timer:
    /// it drops a subscriber that is [full for too long](Self::when_full) only when it is polled for
    /// another reason.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn send_async<'a>(
        &'a mut self,
        value: &'a T,
    ) -> impl Future<Output = Result<u64, SendError>> {
        TopicWait {
            topic: &self.topic,
            poll: move |subscriptions: &mut Subscriptions, waker: &Waker| {
                let message = &mut GroupValue::<T, C>::new(value);
                let sent = subscriptions.group.poll_send(waker, message);
                sent.map_err(|failure| {
                    SendError::of_publisher(subscriptions.template.name(), failure)
                })
            },
        }
    }
}

impl<T: ?Sized, C> Publisher<T, C> {
    /// Waits in a task until every subscriber's engine holds everything that was sent to it, as
    /// [`flush`](Self::flush) does. Dropping the future takes the questions back.
    pub fn flush_async(&mut self) -> impl Future<Output = ()> {
        TopicWait {
            topic: &self.topic,
            poll: |subscriptions: &mut Subscriptions, waker: &Waker| {
                let flushed = subscriptions.group.poll_flush(waker);
                flushed.map(|flushed| {
                    debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
                })
            },
        }
    }
}

impl<R, F> Future for TopicWait<'_, F>
where
    F: FnMut(&mut Subscriptions, &Waker) -> Poll<R> + Unpin,
{
    type Output = R;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let Self { topic, poll } = self.get_mut();
        topic.with(|subscriptions| poll(subscriptions, context.waker()))
    }
}

impl<F> Drop for TopicWait<'_, F> {
    fn drop(&mut self) {
        self.topic
            .with(|subscriptions| subscriptions.group.leave_waits());
    }
}
