//! A sender as a sink.

use std::{
    borrow::Borrow,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_sink::Sink;
use ibex_codec::Codec;
use ibex_transport::channel::SendHandle;

use crate::{SendError, Sender};

/// An end that a [`SendSink`] sends by: a [`Sender`], or a `&mut` to one.
pub trait SendingEnd {
    /// The message type.
    type Value: ?Sized;

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        value: &Self::Value,
    ) -> Poll<Result<u64, SendError>>;

    fn try_send(&mut self, value: &Self::Value) -> Result<u64, SendError>;

    fn handle(&mut self) -> &mut SendHandle;
}

impl<T: ?Sized, C: Codec<T>> SendingEnd for Sender<T, C> {
    type Value = T;

    fn poll_send(&mut self, context: &mut Context<'_>, value: &T) -> Poll<Result<u64, SendError>> {
        Sender::poll_send(self, context, value)
    }

    fn try_send(&mut self, value: &T) -> Result<u64, SendError> {
        Sender::try_send(self, value)
    }

    fn handle(&mut self) -> &mut SendHandle {
        &mut self.handle
    }
}

impl<S: SendingEnd> SendingEnd for &mut S {
    type Value = S::Value;

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        value: &S::Value,
    ) -> Poll<Result<u64, SendError>> {
        (**self).poll_send(context, value)
    }

    fn try_send(&mut self, value: &S::Value) -> Result<u64, SendError> {
        (**self).try_send(value)
    }

    fn handle(&mut self) -> &mut SendHandle {
        (**self).handle()
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
        sender.handle().leave_room();
        (sender, self.kept.take())
    }
}

impl<S: SendingEnd, V: Borrow<S::Value>> SendSink<S, V> {
    fn sender(&mut self) -> &mut S {
        self.sender.as_mut().expect("only `into_inner` takes it")
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
        let failure = this.sender().handle().open_failure();
        Poll::Ready(failure.map_or(Ok(()), |error| Err(error.into())))
    }
}

impl<S: SendingEnd, V> Drop for SendSink<S, V> {
    fn drop(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.handle().leave_room();
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
