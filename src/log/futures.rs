//! Log senders for tasks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use ibex_codec::Codec;

use super::{LogError, LogSender, LogSource, SendStep, source::Waiting};

impl<T: ?Sized, C: Codec<T>> LogSender<T, C> {
    /// Sends in a task all of `log` that the far end lacks, as [`send`](Self::send) does.
    /// [`LogSource::resume_async`] asks the far end.
    ///
    /// Dropping the future leaves the messages that were sent, and the next call goes on behind
    /// them.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub async fn send_async<L: LogSource<T, C>>(&mut self, log: &mut L) -> Result<u64, LogError> {
        loop {
            while self.channel.is_none() {
                let peer = self.sessions.next_async().await?;
                let answer = log.resume_async(&peer).await;
                self.take_answer(log, &peer, answer)?;
            }
            let rest = RemainingLog { sender: self, log };
            if let SendStep::AtEnd = rest.await? {
                return Ok(self.position());
            }
        }
    }

    /// Sends as [`send_async`](Self::send_async) does, and waits until the far end has
    /// acknowledged the log up to `position`.
    ///
    /// Dropping the future is as for [`send_async`](Self::send_async).
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked).
    pub async fn wait_acked_async<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
    ) -> Result<(), LogError> {
        loop {
            self.send_async(log).await?;
            let message = self.unacked(position)?;
            let (Some(message), Some(channel)) = (message, &mut self.channel) else {
                return Ok(());
            };
            let waited = channel.wait_acked_async(message).await;
            self.waited(log, waited)?;
        }
    }
}

/// Sends what is left of a log in one session.
struct RemainingLog<'a, T: ?Sized, C: Codec<T>, L> {
    sender: &'a mut LogSender<T, C>,
    log: &'a mut L,
}

impl<T: ?Sized, C: Codec<T>, L: LogSource<T, C>> Future for RemainingLog<'_, T, C, L> {
    type Output = Result<SendStep, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match this.sender.step(this.log, Waiting::Task(context.waker())) {
                Ok(SendStep::Sent) => {}
                Ok(SendStep::NotYet(_)) => return Poll::Pending,
                done => return Poll::Ready(done),
            }
        }
    }
}

impl<T: ?Sized, C: Codec<T>, L> Drop for RemainingLog<'_, T, C, L> {
    fn drop(&mut self) {
        if let Some(channel) = &mut self.sender.channel {
            channel.drop_wakers();
        }
    }
}
