//! Log senders for tasks.

use std::{
    future::Future,
    task::{Context, Poll},
};

use ibex_core::{codec::Codec, extend::parking};

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
        let poll = |(sender, log): &mut (&'a mut Self, &'a mut L),
                    context: &mut Context<'_>|
         -> Poll<Result<u64, LogError>> {
            let waker = context.waker();
            let some = (MESSAGES_PER_POLL, Waiting::Task(waker));
            let (_, turn) = sender.poll_some(*log, some, waker)?;
            match turn {
                SendTurn::More => {
                    waker.wake_by_ref();
                    Poll::Pending
                }
                SendTurn::AtEnd => Poll::Ready(Ok(sender.position())),
                SendTurn::Pending => Poll::Pending,
            }
        };
        parking::future((self, log), poll, |(sender, _)| sender.drop_wakers())
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

/// The messages that a task sends before other tasks of its thread have their turn.
const MESSAGES_PER_POLL: usize = 64;
