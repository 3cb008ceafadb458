//! Futures of publishers.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use ibex_base::fork;
use ibex_codec::Codec;

use super::{Publisher, Topic, sent_after_fork, subscriptions::Subscriptions};
use crate::{SendError, Sender};

/// A wait for a publisher's subscribers. Dropping it takes back what it left with them.
struct TopicWait<'a, R, F> {
    topic: &'a Topic,
    poll: F,
    /// Makes the outcome in a fork of the process.
    after_fork: fn() -> R,
}

impl<T: ?Sized, C: Codec<T>> Publisher<T, C> {
    /// Sends a message in a task. Pending while the window of a subscriber is full.
    ///
    /// If the future is dropped before it is ready, no subscriber gets the message.
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
                let message = Sender::<T, C>::group_message(value);
                let sent = subscriptions.group.poll_send(waker, message);
                sent.map_err(|failure| {
                    SendError::of_publisher(subscriptions.template.name(), failure)
                })
            },
            after_fork: sent_after_fork,
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
            after_fork: || (),
        }
    }
}

impl<R, F> Future for TopicWait<'_, R, F>
where
    F: FnMut(&mut Subscriptions, &Waker) -> Poll<R> + Unpin,
{
    type Output = R;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let Self {
            topic,
            poll,
            after_fork,
        } = self.get_mut();
        if fork::is_child() {
            return Poll::Ready(after_fork());
        }
        let polled = topic.with(|subscriptions| poll(subscriptions, context.waker()));
        polled.unwrap_or_else(|| Poll::Ready(after_fork()))
    }
}

impl<R, F> Drop for TopicWait<'_, R, F> {
    fn drop(&mut self) {
        self.topic
            .with(|subscriptions| subscriptions.group.leave_waits());
    }
}
