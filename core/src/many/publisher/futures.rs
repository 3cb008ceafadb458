//! Futures of publishers.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
};

use ibex_base::fork;
use ibex_codec::Codec;
use ibex_ring::parking;

use super::{Publisher, Topic, sent_after_fork, subscriptions::Subscriptions};
use crate::{SendError, Sender};

/// Waits in a task for a publisher's subscribers, by `poll`. In a fork of the process, `after_fork`
/// makes the outcome. Dropping the future takes back what it left with the subscribers.
fn wait<R>(
    topic: &Topic,
    mut poll: impl FnMut(&mut Subscriptions, &Waker) -> Poll<R>,
    after_fork: fn() -> R,
) -> impl Future<Output = R> {
    let poll = move |topic: &mut &Topic, context: &mut Context<'_>| {
        if fork::is_child() {
            return Poll::Ready(after_fork());
        }
        let polled = topic.with(|subscriptions| poll(subscriptions, context.waker()));
        polled.unwrap_or_else(|| Poll::Ready(after_fork()))
    };
    let leave = |topic: &mut &Topic| {
        topic.with(|subscriptions| subscriptions.group.leave_waits());
    };
    parking::future(topic, poll, leave)
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
        let poll = move |subscriptions: &mut Subscriptions, waker: &Waker| {
            let message = Sender::<T, C>::group_message(value);
            let sent = subscriptions.group.poll_send(waker, message);
            sent.map_err(|failure| SendError::of_publisher(subscriptions.template.name(), failure))
        };
        wait(&self.topic, poll, sent_after_fork)
    }
}

impl<T: ?Sized, C> Publisher<T, C> {
    /// Waits in a task until every subscriber's engine holds everything that was sent to it, as
    /// [`flush`](Self::flush) does. Dropping the future takes the questions back.
    pub fn flush_async(&mut self) -> impl Future<Output = ()> {
        let poll = |subscriptions: &mut Subscriptions, waker: &Waker| {
            let flushed = subscriptions.group.poll_flush(waker);
            flushed.map(|flushed| {
                debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
            })
        };
        wait(&self.topic, poll, || ())
    }
}
