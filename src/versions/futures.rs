//! Ends of two versions, for tasks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use ibex_codec::Codec;
use ibex_transport::channel::TaskWait;

use super::{VersionedMessage, VersionedReceiver, VersionedSender, Versions};
use crate::{RecvError, SendError, Sender, asynchronous::item_of, message::DefaultCodec};

// ---- Sending -------------------------------------------------------------------------

/// Waits until the version is settled. See [`VersionedSender::opened_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct VersionedOpenedAsync<'a, N: ?Sized, O: ?Sized, C = DefaultCodec> {
    /// Until it is handed on.
    sender: Option<&'a mut VersionedSender<N, O, C>>,
    wait: TaskWait,
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> VersionedSender<N, O, C> {
    /// The sender of the version that was settled, for a task: pending until the peer has
    /// opened its end. From then on it is ready at once and with the same version, so it may
    /// be awaited for each message.
    ///
    /// What it gives has [`send_async`](Sender::send_async), [`sink`](Sender::sink) and all
    /// else that a [`Sender`] has. Dropping the future changes nothing.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{SendError, Sequence, VersionedSender, Versions};
    ///
    /// # #[ibex::message]
    /// # struct EntryV1 { offset: u64 }
    /// # #[ibex::message]
    /// # struct EntryV2 { offset: u64, term: u64 }
    /// async fn send(
    ///     log: &mut VersionedSender<EntryV2, EntryV1>,
    ///     offset: u64,
    ///     term: u64,
    /// ) -> Result<Sequence, SendError> {
    ///     match log.opened_async().await? {
    ///         Versions::Newer(log) => log.send_async(&EntryV2 { offset, term }).await,
    ///         Versions::Older(log) => log.send_async(&EntryV1 { offset }).await,
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SendError`]: the peer knows neither version, or the session has ended. It waits for as
    /// long as it takes until the peer opens its end, whatever `open_timeout` is.
    ///
    /// # Panics
    ///
    /// The future does if it is polled again when it was ready.
    pub fn opened_async(&mut self) -> VersionedOpenedAsync<'_, N, O, C> {
        VersionedOpenedAsync {
            sender: Some(self),
            wait: TaskWait::default(),
        }
    }
}

impl<'a, N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Future
    for VersionedOpenedAsync<'a, N, O, C>
{
    type Output = Result<Versions<&'a mut Sender<N, C>, &'a mut Sender<O, C>>, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let sender = this.sender.take().expect("it was ready before");
        match sender.handle.poll_opened(&mut this.wait, context.waker()) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(sender.open())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                this.sender = Some(sender);
                Poll::Pending
            }
        }
    }
}

impl<N: ?Sized, O: ?Sized, C> Drop for VersionedOpenedAsync<'_, N, O, C> {
    fn drop(&mut self) {
        if let Some(sender) = &self.sender {
            sender.handle.leave(&mut self.wait);
        }
    }
}

// ---- Receiving -----------------------------------------------------------------------

/// The next message. See [`VersionedReceiver::recv_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct VersionedRecvAsync<'a, N: ?Sized, O: ?Sized, C = DefaultCodec> {
    receiver: &'a mut VersionedReceiver<N, O, C>,
    wait: TaskWait,
}

/// A receiver's messages as a stream. See [`VersionedReceiver::stream`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct VersionedMessages<'a, N: ?Sized, O: ?Sized, C = DefaultCodec> {
    receiver: &'a mut VersionedReceiver<N, O, C>,
    wait: TaskWait,
    is_over: bool,
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> VersionedReceiver<N, O, C> {
    /// The next message, for a task: [`Receiver::recv_async`](crate::Receiver::recv_async).
    /// Dropping the future loses no message.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{RecvError, VersionedReceiver, Versions};
    ///
    /// # #[ibex::message]
    /// # struct EntryV1 { offset: u64 }
    /// # #[ibex::message]
    /// # struct EntryV2 { offset: u64, term: u64 }
    /// async fn next_offset(
    ///     log: &mut VersionedReceiver<EntryV2, EntryV1>,
    /// ) -> Result<u64, RecvError> {
    ///     Ok(match log.recv_async().await? {
    ///         Versions::Newer(entry) => entry.offset.to_native(),
    ///         Versions::Older(entry) => entry.offset.to_native(),
    ///     })
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), but that it waits for as long as it takes until the peer has
    /// opened its end.
    pub fn recv_async(&mut self) -> VersionedRecvAsync<'_, N, O, C> {
        VersionedRecvAsync {
            receiver: self,
            wait: TaskWait::default(),
        }
    }

    /// The messages up to the end, as a stream: [`Receiver::stream`](crate::Receiver::stream).
    pub fn stream(&mut self) -> VersionedMessages<'_, N, O, C> {
        VersionedMessages {
            receiver: self,
            wait: TaskWait::default(),
            is_over: false,
        }
    }

    fn poll_recv(
        &mut self,
        wait: &mut TaskWait,
        context: &mut Context<'_>,
    ) -> Poll<Result<VersionedMessage<N, O, C>, RecvError>> {
        let raw = ready!(self.handle.poll_receive(wait, context.waker()))?;
        Poll::Ready(self.open(raw))
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Future for VersionedRecvAsync<'_, N, O, C> {
    type Output = Result<VersionedMessage<N, O, C>, RecvError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.receiver.poll_recv(&mut this.wait, context)
    }
}

impl<N: ?Sized, O: ?Sized, C> Drop for VersionedRecvAsync<'_, N, O, C> {
    fn drop(&mut self) {
        self.receiver.handle.leave(&mut self.wait);
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Stream for VersionedMessages<'_, N, O, C> {
    type Item = Result<VersionedMessage<N, O, C>, RecvError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let item = ready!(this.receiver.poll_recv(&mut this.wait, context));
        Poll::Ready(item_of(item, &mut this.is_over))
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> FusedStream for VersionedMessages<'_, N, O, C> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl<N: ?Sized, O: ?Sized, C> Drop for VersionedMessages<'_, N, O, C> {
    fn drop(&mut self) {
        self.receiver.handle.leave(&mut self.wait);
    }
}

impl<N: ?Sized, O: ?Sized, C> fmt::Debug for VersionedOpenedAsync<'_, N, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VersionedOpenedAsync")
            .field(&self.sender)
            .finish()
    }
}

impl<N: ?Sized, O: ?Sized, C> fmt::Debug for VersionedRecvAsync<'_, N, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VersionedRecvAsync")
            .field(&self.receiver)
            .finish()
    }
}

impl<N: ?Sized, O: ?Sized, C> fmt::Debug for VersionedMessages<'_, N, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VersionedMessages")
            .field(&self.receiver)
            .finish()
    }
}
