//! What comes of all peers, for tasks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use ibex_codec::Codec;
use ibex_transport::channel::TaskWait;

use super::{FanIn, FanInEvent, Something};
use crate::message::DefaultCodec;

/// What comes next of any peer. See [`FanIn::next_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct FanInNextAsync<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    fan_in: &'a mut FanIn<T, C>,
    wait: TaskWait,
}

/// What comes of all peers, as a stream. See [`FanIn::stream`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct FanInEvents<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    fan_in: &'a mut FanIn<T, C>,
    wait: TaskWait,
    is_over: bool,
}

impl<T: ?Sized, C: Codec<T>> FanIn<T, C> {
    /// What comes next, of whichever peer, for a task; `None` when the node was closed and
    /// everything was received.
    ///
    /// It is woken by what wakes [`next`](Self::next), and polls nobody meanwhile: peers that
    /// are idle cost nothing. Dropping the future loses no event: what had come is there for the
    /// next call, in whichever form.
    ///
    /// ```
    /// use ibex::{FanIn, FanInEvent, Raw};
    ///
    /// /// Counts the bytes of all peers until the node is closed.
    /// async fn count(mut requests: FanIn<[u8], Raw>) -> u64 {
    ///     let mut bytes = 0;
    ///     while let Some(event) = requests.next_async().await {
    ///         if let FanInEvent::Message(_, message) = event {
    ///             bytes += message.len() as u64;
    ///             message.ack();
    ///         }
    ///     }
    ///     bytes
    /// }
    /// ```
    pub fn next_async(&mut self) -> FanInNextAsync<'_, T, C> {
        FanInNextAsync {
            fan_in: self,
            wait: TaskWait::default(),
        }
    }

    /// The events until the node is closed, as a stream. Dropping it loses none.
    pub fn stream(&mut self) -> FanInEvents<'_, T, C> {
        FanInEvents {
            fan_in: self,
            wait: TaskWait::default(),
            is_over: false,
        }
    }

    fn poll_event(
        &mut self,
        wait: &mut TaskWait,
        context: &mut Context<'_>,
    ) -> Poll<Option<FanInEvent<T, C>>> {
        let gathering = self.gathering.clone();
        gathering.poll_until(wait, context.waker(), Something::new(self))
    }
}

impl<T: ?Sized, C: Codec<T>> Future for FanInNextAsync<'_, T, C> {
    type Output = Option<FanInEvent<T, C>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.fan_in.poll_event(&mut this.wait, context)
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for FanInNextAsync<'_, T, C> {
    fn drop(&mut self) {
        self.fan_in.gathering.leave(&mut self.wait);
    }
}

impl<T: ?Sized, C: Codec<T>> Stream for FanInEvents<'_, T, C> {
    type Item = FanInEvent<T, C>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let event = ready!(this.fan_in.poll_event(&mut this.wait, context));
        this.is_over = event.is_none();
        Poll::Ready(event)
    }
}

impl<T: ?Sized, C: Codec<T>> FusedStream for FanInEvents<'_, T, C> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for FanInEvents<'_, T, C> {
    fn drop(&mut self) {
        self.fan_in.gathering.leave(&mut self.wait);
    }
}

impl<T: ?Sized, C: Codec<T>> fmt::Debug for FanInNextAsync<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FanInNextAsync").field(&self.fan_in).finish()
    }
}

impl<T: ?Sized, C: Codec<T>> fmt::Debug for FanInEvents<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FanInEvents").field(&self.fan_in).finish()
    }
}
