//! Futures and streams of messages, for every end that receives.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use ibex_codec::Codec;
use ibex_ring::parking;
use ibex_transport::channel::ReceiveHandle;

use crate::{Message, Receiver, RecvError, RecvErrorKind, handles::receiver};

/// An end that receives: a [`Receiver`], a [`VersionedReceiver`], a [`FanIn`], or a `&mut` to
/// one of them. Nobody outside of the crate can name it.
pub trait ReceivingEnd {
    /// The output of a call that receives: a message or an error; for a fan-in an event, or `None` when
    /// the node was closed.
    type Received;
    /// The item of [`Messages`]: the output without the orderly end.
    type Item;

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Self::Received>;

    /// Returns the item that a stream gives for an output, and whether the stream is over then.
    fn item(received: Self::Received, is_over: &mut bool) -> Option<Self::Item>;

    /// Takes back the waker that a poll left.
    fn leave(&mut self);
}

/// Waits for the next message in a task; see [`Receiver::recv_async`] and [`FanIn::next_async`].
///
/// Dropping the future loses nothing: a message that had come is there for the next call.
pub(crate) fn recv_async<R: ReceivingEnd>(end: &mut R) -> impl Future<Output = R::Received> {
    parking::future(end, ReceivingEnd::poll_received, ReceivingEnd::leave)
}

/// Waits for the peer to open its end, in a task; see [`Receiver::opened_async`].
pub(crate) fn opened_async(
    handle: &mut ReceiveHandle,
) -> impl Future<Output = Result<(), RecvError>> {
    parking::future(
        handle,
        |handle, context| handle.poll_opened(context.waker()).map_err(RecvError::from),
        |handle| handle.leave(),
    )
}

/// The messages of an end, as a stream. [`stream`](Receiver::stream) borrows the end, and
/// [`into_stream`](Receiver::into_stream) takes it.
///
/// | of | item |
/// |---|---|
/// | a [`Receiver`] | a [`Message`] or a [`RecvError`] |
/// | a [`VersionedReceiver`](crate::VersionedReceiver) | a message of one of two [versions](crate::Versions), or a [`RecvError`] |
/// | a [`FanIn`](crate::FanIn) | a [`FanInEvent`](crate::FanInEvent) |
///
/// After an error that ends the channel the stream is over; after a message that is not valid it
/// goes on. Dropping it loses no message.
#[must_use = "a stream does nothing unless it is polled"]
pub struct Messages<R: ReceivingEnd> {
    /// There until `into_inner` takes it.
    end: Option<R>,
    is_over: bool,
}

impl<R: ReceivingEnd> Messages<R> {
    pub(crate) fn new(end: R) -> Self {
        Self {
            end: Some(end),
            is_over: false,
        }
    }

    /// The end, to receive otherwise. No message is lost.
    pub fn into_inner(mut self) -> R {
        let mut end = self.end.take().expect("nobody else takes it");
        end.leave();
        end
    }
}

// The end is never pinned.
impl<R: ReceivingEnd> Unpin for Messages<R> {}

impl<R: ReceivingEnd> Stream for Messages<R> {
    type Item = R::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R::Item>> {
        let Self { end, is_over } = self.get_mut();
        match end {
            Some(end) if !*is_over => {
                let received = ready!(end.poll_received(context));
                Poll::Ready(R::item(received, is_over))
            }
            _ => Poll::Ready(None),
        }
    }
}

impl<R: ReceivingEnd> FusedStream for Messages<R> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl<R: ReceivingEnd> Drop for Messages<R> {
    fn drop(&mut self) {
        if let Some(end) = &mut self.end {
            end.leave();
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Receiver<T, C> {
    /// The next message, for a task.
    ///
    /// Dropping the future loses no message: a message that had come is there for the next call.
    ///
    /// # Errors
    ///
    /// The errors of [`recv`](Self::recv), except that the future waits for the peer to open its
    /// end without a time limit.
    pub fn recv_async(&mut self) -> impl Future<Output = Result<Message<T, C>, RecvError>> {
        recv_async(self)
    }

    /// Returns the next message, or `None` when the channel has ended in order, for a task. Dropping
    /// the future loses no message.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next), except that the future waits for the peer to open its
    /// end without a time limit.
    pub async fn next_async(&mut self) -> Result<Option<Message<T, C>>, RecvError> {
        receiver::until_end(self.recv_async().await)
    }

    /// Receives up to `limit` messages in a task, as [`recv_many`](Self::recv_many) does. It waits
    /// for the first message alone.
    ///
    /// Dropping the future loses no message.
    ///
    /// # Errors
    ///
    /// The errors of [`recv_many`](Self::recv_many), except that the future waits for the peer to
    /// open its end without a time limit.
    pub async fn recv_many_async(
        &mut self,
        into: &mut Vec<Message<T, C>>,
        limit: usize,
    ) -> Result<usize, RecvError> {
        if limit == 0 {
            return Ok(0);
        }
        let first = self.next_async().await?;
        self.take_many(first, into, limit)
    }

    /// Waits in a task until the peer has opened its end. Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: the peer's end has another type, or the session has ended. The future waits
    /// without a time limit until the peer opens its end, whatever `open_timeout` is.
    pub fn opened_async(&mut self) -> impl Future<Output = Result<(), RecvError>> {
        opened_async(&mut self.handle)
    }

    /// Polls for the next message. While it is pending, the waker of the last poll is kept, [and no
    /// other](crate::asynchronous#polls).
    ///
    /// # Errors
    ///
    /// The errors of [`recv_async`](Self::recv_async).
    #[inline]
    pub fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Message<T, C>, RecvError>> {
        let raw = ready!(self.handle.poll_receive(context.waker()))?;
        Poll::Ready(receiver::open(&self.handle, raw).map_err(RecvError::from))
    }

    /// Returns the messages up to the end, as a stream. After an error that ends the channel the
    /// stream is over; after a message that is not valid it goes on.
    pub fn stream(&mut self) -> Messages<&mut Self> {
        Messages::new(self)
    }

    /// Turns the receiver into a stream, as [`stream`](Self::stream) does by reference.
    pub fn into_stream(self) -> Messages<Self> {
        Messages::new(self)
    }
}

impl<T: ?Sized, C: Codec<T>> ReceivingEnd for Receiver<T, C> {
    type Received = Result<Message<T, C>, RecvError>;
    type Item = Result<Message<T, C>, RecvError>;

    #[inline]
    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Self::Received> {
        self.poll_recv(context)
    }

    fn item(received: Self::Received, is_over: &mut bool) -> Option<Self::Item> {
        item_of(received, is_over)
    }

    #[inline]
    fn leave(&mut self) {
        self.handle.leave();
    }
}

impl<R: ReceivingEnd> ReceivingEnd for &mut R {
    type Received = R::Received;
    type Item = R::Item;

    #[inline]
    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Self::Received> {
        (**self).poll_received(context)
    }

    fn item(received: Self::Received, is_over: &mut bool) -> Option<Self::Item> {
        R::item(received, is_over)
    }

    #[inline]
    fn leave(&mut self) {
        (**self).leave();
    }
}

/// Returns whether a stream is over, as it is after any error that does not spare the channel.
pub(crate) fn item_of<M>(
    received: Result<M, RecvError>,
    is_over: &mut bool,
) -> Option<Result<M, RecvError>> {
    *is_over = matches!(&received, Err(error) if !error.spares_channel());
    match received {
        Err(error) if error.kind() == RecvErrorKind::Ended => None,
        item => Some(item),
    }
}

impl<R: ReceivingEnd + fmt::Debug> fmt::Debug for Messages<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Messages").field(&self.end).finish()
    }
}
