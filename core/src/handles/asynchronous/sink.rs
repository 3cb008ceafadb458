//! A sender as a sink.

use std::{
    borrow::Borrow,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_sink::Sink;
use ibex_codec::Codec;

use crate::{SendError, Sender};

/// An end that a [`SendSink`] sends by: a [`Sender`], or a `&mut` to one.
pub trait SendingEnd {
    /// The message type.
    type Value: ?Sized;
    /// The codec.
    type Codec: Codec<Self::Value>;

    fn sender(&mut self) -> &mut Sender<Self::Value, Self::Codec>;
}

impl<T: ?Sized, C: Codec<T>> SendingEnd for Sender<T, C> {
    type Value = T;
    type Codec = C;

    fn sender(&mut self) -> &mut Self {
        self
    }
}

impl<S: SendingEnd> SendingEnd for &mut S {
    type Value = S::Value;
    type Codec = S::Codec;

    fn sender(&mut self) -> &mut Sender<S::Value, S::Codec> {
        (**self).sender()
    }
}

/// A sender as a sink. [`Sender::sink`] borrows the sender, and [`Sender::into_sink`] takes it.
#[must_use = "a sink does nothing unless it is polled"]
pub struct SendSink<S: SendingEnd, V> {
    /// There until `into_inner` takes it.
    sender: Option<S>,
    /// A value that found no room.
    kept: Option<V>,
}

impl<S: SendingEnd, V> SendSink<S, V> {
    pub(super) fn new(sender: S) -> Self {
        Self {
            sender: Some(sender),
            kept: None,
        }
    }

    /// Returns the sender, and the value that found no room, if the sink was not flushed.
    pub fn into_inner(mut self) -> (S, Option<V>) {
        let mut sender = self.sender.take().expect("nobody else takes it");
        sender.sender().handle.leave_room();
        (sender, self.kept.take())
    }
}

impl<S: SendingEnd, V: Borrow<S::Value>> SendSink<S, V> {
    fn sender(&mut self) -> &mut Sender<S::Value, S::Codec> {
        let sender = self.sender.as_mut();
        sender.expect("only `into_inner` takes it").sender()
    }

    /// Sends what is kept.
    fn poll_empty(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(value) = self.kept.take() else {
            return Poll::Ready(Ok(()));
        };
        match self.sender().poll_send(context, value.borrow()) {
            Poll::Ready(sent) => Poll::Ready(sent.map(|_| ())),
            Poll::Pending => {
                self.kept = Some(value);
                Poll::Pending
            }
        }
    }
}

// No field is pinned.
impl<S: SendingEnd, V> Unpin for SendSink<S, V> {}

impl<S: SendingEnd, V: Borrow<S::Value>> Sink<V> for SendSink<S, V> {
    type Error = SendError;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.get_mut().poll_empty(context)
    }

    fn start_send(self: Pin<&mut Self>, value: V) -> Result<(), SendError> {
        let this = self.get_mut();
        match this.sender().try_send(value.borrow()) {
            Ok(_) => Ok(()),
            Err(error) if error.is_transient() => {
                this.kept = Some(value);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.get_mut().poll_empty(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let this = self.get_mut();
        ready!(this.poll_empty(context))?;
        let failure = this.sender().handle.open_failure();
        Poll::Ready(failure.map_or(Ok(()), |error| Err(error.into())))
    }
}

impl<S: SendingEnd, V> Drop for SendSink<S, V> {
    fn drop(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.sender().handle.leave_room();
        }
    }
}

impl<S: SendingEnd + fmt::Debug, V> fmt::Debug for SendSink<S, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSink")
            .field("sender", &self.sender)
            .field("keeps_a_value", &self.kept.is_some())
            .finish()
    }
}
