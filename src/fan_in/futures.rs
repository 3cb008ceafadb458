//! What comes of all peers, for tasks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use ibex_transport::channel::TaskWait;

use super::{FanIn, FanInEvent, Something};
use crate::{KnownVersions, OneVersion, message::DefaultCodec};

/// What comes next of any peer. See [`FanIn::next_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct FanInNextAsync<'a, T: ?Sized, C = DefaultCodec, V: KnownVersions<T, C> = OneVersion> {
    fan_in: &'a mut FanIn<T, C, V>,
    wait: TaskWait,
}

/// What comes of all peers, as a stream. See [`FanIn::stream`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct FanInEvents<'a, T: ?Sized, C = DefaultCodec, V: KnownVersions<T, C> = OneVersion> {
    fan_in: &'a mut FanIn<T, C, V>,
    wait: TaskWait,
    is_over: bool,
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> FanIn<T, C, V> {
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
    pub fn next_async(&mut self) -> FanInNextAsync<'_, T, C, V> {
        FanInNextAsync {
            fan_in: self,
            wait: TaskWait::default(),
        }
    }

    /// The events until the node is closed, as a stream. Dropping it loses none.
    pub fn stream(&mut self) -> FanInEvents<'_, T, C, V> {
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
    ) -> Poll<Option<FanInEvent<T, C, V>>> {
        let gathering = self.gathering.clone();
        gathering.poll_until(wait, context.waker(), Something::new(self))
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> Future for FanInNextAsync<'_, T, C, V> {
    type Output = Option<FanInEvent<T, C, V>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.fan_in.poll_event(&mut this.wait, context)
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> Drop for FanInNextAsync<'_, T, C, V> {
    fn drop(&mut self) {
        self.fan_in.gathering.leave(&mut self.wait);
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> Stream for FanInEvents<'_, T, C, V> {
    type Item = FanInEvent<T, C, V>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let event = ready!(this.fan_in.poll_event(&mut this.wait, context));
        this.is_over = event.is_none();
        Poll::Ready(event)
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> FusedStream for FanInEvents<'_, T, C, V> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> Drop for FanInEvents<'_, T, C, V> {
    fn drop(&mut self) {
        self.fan_in.gathering.leave(&mut self.wait);
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> fmt::Debug for FanInNextAsync<'_, T, C, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FanInNextAsync").field(&self.fan_in).finish()
    }
}

impl<T: ?Sized, C, V: KnownVersions<T, C>> fmt::Debug for FanInEvents<'_, T, C, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FanInEvents").field(&self.fan_in).finish()
    }
}
