//! A stream of the events of a node's sessions and channels.
#![forbid(unsafe_code)]

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ibex_ring::parking::{self, Patience, Ticket};
use ibex_transport::runtime::Runtime;

use crate::Event;

/// The events of a node, returned by [`Node::events`](crate::Node::events).
///
/// The iterator waits for the next event, and ends when the node was closed and all events were
/// taken. The handle may be moved to another thread, and does not keep the node from being closed.
///
/// ```
/// use ibex::{Event, Node};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::client()?;
/// let events = node.events();
/// let watching = std::thread::spawn(move || {
///     for event in events {
///         eprintln!("{event}");
///         if let Event::Stalled { channel, .. } = event {
///             // Somebody holds the messages of `channel`.
/// #           let _ = channel;
///         }
///     }
/// });
/// drop(node);
/// watching.join().unwrap();
/// # Ok(())
/// # }
/// ```
pub struct Events {
    runtime: Arc<Runtime>,
    /// The waker of the last poll.
    held: Option<Ticket>,
}

impl Events {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            held: None,
        }
    }

    /// Returns the next event, if there is one. Under [`Driver::Caller`](crate::Driver::Caller) it
    /// runs a turn first.
    pub fn try_next(&mut self) -> Option<Event> {
        self.next_within(Patience::None)
    }

    /// Returns the next event; `None` if none came within `timeout`, or none will.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Event> {
        self.next_within(Patience::at_most(timeout))
    }

    /// Waits for the next event in a task; `None` if none will come. Dropping the future loses no
    /// event. Under [`Driver::Caller`](crate::Driver::Caller) each poll runs a turn first.
    ///
    /// ```
    /// use ibex::{Event, Events};
    ///
    /// async fn watch(mut events: Events) {
    ///     while let Some(event) = events.next_async().await {
    ///         if let Event::Gone { peer, cause, .. } = event {
    ///             eprintln!("{peer} is gone: {cause}");
    ///         }
    ///     }
    /// }
    /// ```
    pub fn next_async(&mut self) -> impl Future<Output = Option<Event>> {
        parking::future(
            self,
            |events, context| events.poll_next(context),
            |Events { runtime, held }| runtime.leave_events(held),
        )
    }

    /// Polls for the next event; `None` if none will come. The handle keeps the waker of the last
    /// poll until an event comes, or it is dropped.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let polled = self.runtime.poll_event(&mut self.held, context.waker());
        polled.map(|event| event.map(Event::of))
    }

    /// Returns the number of events that were dropped because they were not taken. The latest 1024
    /// untaken events are kept. Nothing that happens waits for a reader of events.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.runtime.events_dropped()
    }

    fn next_within(&self, patience: Patience) -> Option<Event> {
        self.runtime.next_event(patience).map(Event::of)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_within(Patience::FOREVER)
    }
}

/// Makes another reader of the same events.
impl Clone for Events {
    fn clone(&self) -> Self {
        Self::new(self.runtime.clone())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.runtime.leave_events(&mut self.held);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.dropped();
        f.debug_struct("Events")
            .field("dropped", &dropped)
            .finish_non_exhaustive()
    }
}
