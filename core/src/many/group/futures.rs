//! Futures of groups.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ibex_codec::Codec;
use ibex_transport::node::Stopwatch;

use super::Group;
use crate::{SendError, Sender, WaitError, handles::message::DefaultCodec};

/// A message that is being sent to a group; see [`Group::send_async`].
pub(crate) struct GroupSendAsync<'a, T: ?Sized, C = DefaultCodec> {
    group: &'a mut Group<T, C>,
    value: &'a T,
}

/// A wait for a quorum; see [`Group::wait_acked_async`].
pub(crate) struct QuorumAsync<'a, T: ?Sized, C = DefaultCodec> {
    group: &'a mut Group<T, C>,
    sequence: u64,
    quorum: usize,
    /// Measures the wait, if the node keeps histograms.
    stopwatch: Option<Stopwatch>,
}

/// A wait for all members' engines to hold everything; see [`Group::flush_async`].
pub(crate) struct GroupFlushAsync<'a, T: ?Sized, C = DefaultCodec> {
    group: &'a mut Group<T, C>,
}

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
        GroupSendAsync { group: self, value }
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
        GroupFlushAsync { group: self }
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
        QuorumAsync {
            stopwatch: Stopwatch::start(self.ack_waits.as_ref()),
            group: self,
            sequence,
            quorum,
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Future for GroupSendAsync<'_, T, C> {
    type Output = Result<u64, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { group, value } = self.get_mut();
        let message = Sender::<T, C>::group_message(value);
        let sent = group.group.poll_send(context.waker(), message);
        sent.map_err(|failure| SendError::of_group(group.template.name(), failure))
    }
}

impl<T: ?Sized, C> Future for QuorumAsync<'_, T, C> {
    type Output = Result<(), WaitError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (sequence, quorum) = (this.sequence, this.quorum);
        let group = &mut this.group.group;
        let answer = group.poll_acknowledged(context.waker(), sequence, quorum);
        if let (Poll::Ready(Ok(_)), Some(stopwatch)) = (&answer, &this.stopwatch) {
            stopwatch.record();
        }
        let channel = this.group.template.name();
        answer.map_err(|failure| WaitError::of_quorum(channel, sequence, quorum, failure))
    }
}

impl<T: ?Sized, C> Future for GroupFlushAsync<'_, T, C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let flushed = ready!(self.get_mut().group.group.poll_flush(context.waker()));
        debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
        Poll::Ready(())
    }
}

impl<T: ?Sized, C> Drop for GroupSendAsync<'_, T, C> {
    fn drop(&mut self) {
        self.group.group.leave_waits();
    }
}

impl<T: ?Sized, C> Drop for QuorumAsync<'_, T, C> {
    fn drop(&mut self) {
        self.group.group.leave_waits();
    }
}

impl<T: ?Sized, C> Drop for GroupFlushAsync<'_, T, C> {
    fn drop(&mut self) {
        self.group.group.leave_waits();
    }
}
