//! Futures of fan-ins.

use std::task::{Context, Poll};

use ibex_codec::Codec;

use super::{FanIn, FanInEvent};
use crate::{
    Message,
    handles::asynchronous::{Messages, ReceivingEnd, recv_async},
};

impl<T: ?Sized, C: Codec<T>> FanIn<T, C> {
    /// Waits in a task for the next event of any peer; `None` when the node was closed and
    /// everything was received.
    ///
    /// The task is woken by whatever wakes [`next`](Self::next), and idle peers cost nothing.
    /// Dropping the future loses no event: an event that had come is there for the next call, in
    /// whichever form.
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
    pub fn next_async(&mut self) -> impl Future<Output = Option<FanInEvent<Message<T, C>>>> {
        recv_async(self)
    }

    /// Polls for the next event, as [`next_async`](Self::next_async) does. While it is pending,
    /// only the waker of the last poll is kept.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<FanInEvent<Message<T, C>>>> {
        self.gathered.poll_for(context, true)
    }

    /// Returns the events until the node is closed, as a stream. Dropping it loses none.
    pub fn stream(&mut self) -> Messages<&mut Self> {
        Messages::new(self)
    }

    /// Turns the fan-in into a stream, as [`stream`](Self::stream) does by reference.
    pub fn into_stream(self) -> Messages<Self> {
        Messages::new(self)
    }
}

impl<T: ?Sized, C: Codec<T>> ReceivingEnd for FanIn<T, C> {
    type Received = Option<FanInEvent<Message<T, C>>>;
    type Item = FanInEvent<Message<T, C>>;

    #[inline]
    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Self::Received> {
        self.poll_next(context)
    }

    fn item(received: Self::Received, is_over: &mut bool) -> Option<Self::Item> {
        *is_over = received.is_none();
        received
    }

    fn leave(&mut self) {
        self.gathered.stop_waiting();
    }
}
