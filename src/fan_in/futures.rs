//! What comes of all peers, for tasks.

use std::{
    mem,
    task::{Context, Poll},
};

use super::{FanIn, FanInEvent, Something};
use crate::{
    KnownVersions,
    asynchronous::{Messages, RecvAsync},
};

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
    pub fn next_async(&mut self) -> RecvAsync<'_, Self> {
        RecvAsync::new(self)
    }

    /// Polls for what comes next, as [`next_async`](Self::next_async) does. While it is pending the waker of the last poll
    /// is kept, and no other.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<FanInEvent<T, C, V>>> {
        self.poll_for(context, true)
    }

    /// Polls for what comes next. A waker, which holds up its caller, may not look for a moment
    /// before it is pending; a task may.
    pub(crate) fn poll_for(
        &mut self,
        context: &mut Context<'_>,
        may_look: bool,
    ) -> Poll<Option<FanInEvent<T, C, V>>> {
        let how = (may_look, self.in_memory);
        let gathering = self.gathering.clone();
        let mut wait = mem::take(&mut self.task_wait);
        let waker = context.waker();
        let event = gathering.poll_until(&mut wait, waker, how, Something::new(self));
        self.task_wait = wait;
        event
    }

    /// Finds what is there, for who left a waker by another poll: notes how soon it came.
    pub(crate) fn find_awaited(&mut self) -> Option<FanInEvent<T, C, V>> {
        let found = self.find();
        if found.is_some() {
            self.task_wait.came();
        }
        found
    }

    /// The events until the node is closed, as a stream. Dropping it loses none.
    pub fn stream(&mut self) -> Messages<&mut Self> {
        Messages::new(self)
    }

    /// A stream as of [`stream`](Self::stream) with the fan-in in it, to be kept or given away.
    pub fn into_stream(self) -> Messages<Self> {
        Messages::new(self)
    }

    /// Lets out what was acknowledged, where callers turn the engine.
    pub(crate) fn let_out(&self) {
        self.gathering.poll();
    }

    /// Takes back the waker that a poll left.
    pub(crate) fn stop_waiting(&mut self) {
        self.gathering.leave(&mut self.task_wait);
    }
}
