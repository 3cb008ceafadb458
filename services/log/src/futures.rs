//! Log senders for tasks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use ibex_core::codec::Codec;

use super::{LogError, LogSender, LogSource, source::Waiting, steps::SendTurn};

impl<T: ?Sized, C: Codec<T>> LogSender<T, C> {
    /// Sends in a task all of `log` that the far end lacks, as [`send`](Self::send) does.
    ///
    /// Dropping the future leaves the messages that were sent, and the next call goes on behind
    /// them.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn send_async<'a, L: LogSource<T, C>>(
        &'a mut self,
        log: &'a mut L,
    ) -> impl Future<Output = Result<u64, LogError>> {
        LogSendAsync { sender: self, log }
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

/// A log on its way to a far end; see [`LogSender::send_async`].
struct LogSendAsync<'a, T: ?Sized, C: Codec<T>, L> {
    sender: &'a mut LogSender<T, C>,
    log: &'a mut L,
}

impl<T: ?Sized, C: Codec<T>, L: LogSource<T, C>> Future for LogSendAsync<'_, T, C, L> {
    type Output = Result<u64, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { sender, log } = self.get_mut();
        let waiting = Waiting::Task(context.waker());
        match sender
            .poll_some(*log, (MESSAGES_PER_POLL, waiting), context.waker())?
            .1
        {
            SendTurn::More => {
                // Other tasks of this thread have their turn too.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            SendTurn::AtEnd => Poll::Ready(Ok(sender.position())),
            SendTurn::Pending => Poll::Pending,
        }
    }
}

impl<T: ?Sized, C: Codec<T>, L> Drop for LogSendAsync<'_, T, C, L> {
    fn drop(&mut self) {
        self.sender.drop_wakers();
    }
}

/// The messages that a task sends before other tasks of its thread have their turn.
const MESSAGES_PER_POLL: usize = 64;
