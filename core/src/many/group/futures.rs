//! Futures of groups.

use std::{
    future::Future,
    task::{Poll, ready},
};

use ibex_codec::Codec;
use ibex_ring::parking;
use ibex_transport::node::Stopwatch;

use super::Group;
use crate::{SendError, Sender, WaitError};

impl<T: ?Sized, C: Codec<T>> Group<T, C> {
    /// Sends a message in a task. Pending while the window of a member is full, or while a member
    /// has not opened its end.
    ///
    /// If the future is dropped before it is ready, no member gets the message. It waits for as long
    /// as members take to open their ends.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn send_async<'a>(
        &'a mut self,
        value: &'a T,
    ) -> impl Future<Output = Result<u64, SendError>> {
        parking::future(
            self,
            move |group, context| {
                let message = Sender::<T, C>::group_message(value);
                let sent = group.group.poll_send(context.waker(), message);
                sent.map_err(|failure| SendError::of_group(group.template.name(), failure))
            },
            |group| group.group.leave_waits(),
        )
    }
}

impl<T: ?Sized, C> Group<T, C> {
    /// Waits in a task until every member's engine holds everything that was sent. Members that end
    /// before that are dropped. All members are asked, and each can wake the task; dropping the
    /// future takes the questions back.
    ///
    /// ```
    /// use ibex::{Raw, SendError, group::Group};
    ///
    /// async fn send(log: &mut Group<[u8], Raw>, entry: &[u8]) -> Result<(), SendError> {
    ///     log.send_async(entry).await?;
    ///     log.flush_async().await;
    ///     Ok(())
    /// }
    /// ```
    pub fn flush_async(&mut self) -> impl Future<Output = ()> {
        parking::future(
            &mut self.group,
            |group, context| {
                let flushed = ready!(group.poll_flush(context.waker()));
                debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
                Poll::Ready(())
            },
            |group| group.leave_waits(),
        )
    }

    /// Waits in a task until at least `quorum` members have acknowledged message `sequence`.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked).
    pub fn wait_acked_async(
        &mut self,
        sequence: u64,
        quorum: usize,
    ) -> impl Future<Output = Result<(), WaitError>> {
        let stopwatch = Stopwatch::start(self.ack_waits.as_ref());
        parking::future(
            self,
            move |group, context| {
                let answer = group
                    .group
                    .poll_acknowledged(context.waker(), sequence, quorum);
                if let (Poll::Ready(Ok(_)), Some(stopwatch)) = (&answer, &stopwatch) {
                    stopwatch.record();
                }
                answer.map_err(|failure| {
                    WaitError::of_quorum(group.template.name(), sequence, quorum, failure)
                })
            },
            |group| group.group.leave_waits(),
        )
    }
}
