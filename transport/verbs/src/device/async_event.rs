//! Asynchronous events, which a device reports without being asked.
//!
//! A device has one reader, because each event is given to one reader only. The reader does not
//! block; its descriptor goes into the set that the owner sleeps on. An event is copied out and
//! acknowledged at once, so that no object's destruction waits for it.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Device, DeviceContext, set_nonblocking};
use crate::{error::VerbsError, provider::RawEvent};

/// The one reader of a device's asynchronous events.
#[derive(Debug)]
pub struct AsyncEvents {
    context: Arc<DeviceContext>,
}

impl AsyncEvents {
    /// Takes the reader; `None` while another one of this device exists.
    ///
    /// # Errors
    /// [`VerbsError`] if reading cannot be made non-blocking.
    pub fn of(device: &Device) -> Result<Option<Self>, VerbsError> {
        let context = device.context();
        // READER, pairs with the drop: the reader before this one has read its last event.
        if context.events_taken.swap(true, Ordering::Acquire) {
            return Ok(None);
        }
        let events = Self {
            context: Arc::clone(context),
        };
        let failed = context.failed("fcntl", "reading events could block a turn");
        set_nonblocking(context.async_fd()).map_err(failed)?;
        Ok(Some(events))
    }

    /// Returns the next event; `None` when none waits.
    ///
    /// # Errors
    /// [`VerbsError`] if the device is gone.
    pub fn take(&mut self) -> Result<Option<AsyncEvent>, VerbsError> {
        let event = self.context.next_event()?;
        Ok(event.map(AsyncEvent::from_raw))
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.async_fd()
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        // READER, pairs with `of`.
        self.context.events_taken.store(false, Ordering::Release);
    }
}

/// An asynchronous event of a device
/// ([`ibv_get_async_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An event of a queue pair, which its number names.
    QueuePair(u32, QueuePairEvent),
    /// A completion queue, by its tag, has overflowed or broken: it is lost, and every
    /// connection that completes into it.
    CompletionQueueError(u64),
    /// A shared receive queue, by its tag, has broken.
    ReceiveQueueError(u64),
    /// A shared receive queue, by its tag, has fewer receives left than its limit. The event comes
    /// once; the next [`arm_limit`](crate::ReceiveQueue::arm_limit) arms it again.
    ReceiveQueueLimit(u64),
    /// An event of a port, which its number names.
    Port(u8, PortEvent),
    /// The device is broken: everything on it is lost.
    DeviceFatal,
    /// A work queue has broken; this crate makes none.
    WorkQueueFatal,
    /// A number that this version does not know, and ignores.
    Unknown(u32),
}

/// An event of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairEvent {
    /// The queue pair broke, and may not even report its requests.
    Fatal,
    /// The queue pair refused a request of the peer as invalid; it is dead.
    InvalidRequest,
    /// The queue pair refused a request of the peer that lacked the rights; it is dead.
    AccessViolation,
    /// The peer's first packet has come.
    Established,
    /// The requests that the queue pair had begun are finished. This crate asks for no such event.
    SendQueueDrained,
    /// The queue pair is dead and takes no more from the shared receive queue.
    LastRequestReached,
    /// The queue pair changed to its alternate path, which this crate gives to none.
    PathMigrated,
    /// The queue pair could not change to its alternate path.
    PathMigrationFailed,
}

/// An event of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The port carries traffic again. Queue pairs that died in the meantime stay dead.
    Active,
    /// The port carries no traffic.
    Error,
    /// The port's GID table has changed: indices have to be looked up again.
    GidChange,
    /// The port's local identifier has changed.
    LidChange,
    /// The port's partitions have changed.
    PkeyChange,
    /// The subnet manager has changed.
    SubnetManagerChange,
    /// The subnet manager wants all clients to register again.
    ReregisterWanted,
    /// The port's speed has changed.
    SpeedChange,
}

impl AsyncEvent {
    fn from_raw(raw: RawEvent) -> Self {
        use QueuePairEvent as Pair;
        let pair = |event| Self::QueuePair(raw.element as u32, event);
        let port = |event| Self::Port(raw.element as u8, event);
        match raw.event_type {
            0 => Self::CompletionQueueError(raw.element),
            1 => pair(Pair::Fatal),
            2 => pair(Pair::InvalidRequest),
            3 => pair(Pair::AccessViolation),
            4 => pair(Pair::Established),
            5 => pair(Pair::SendQueueDrained),
            6 => pair(Pair::PathMigrated),
            7 => pair(Pair::PathMigrationFailed),
            8 => Self::DeviceFatal,
            9 => port(PortEvent::Active),
            10 => port(PortEvent::Error),
            11 => port(PortEvent::LidChange),
            12 => port(PortEvent::PkeyChange),
            13 => port(PortEvent::SubnetManagerChange),
            14 => Self::ReceiveQueueError(raw.element),
            15 => Self::ReceiveQueueLimit(raw.element),
            16 => pair(Pair::LastRequestReached),
            17 => port(PortEvent::ReregisterWanted),
            18 => port(PortEvent::GidChange),
            19 => Self::WorkQueueFatal,
            20 => port(PortEvent::SpeedChange),
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueuePair(number, event) => write!(f, "queue pair {number:#x}: {event:?}"),
            Self::CompletionQueueError(tag) => write!(f, "completion queue {tag} is lost"),
            Self::ReceiveQueueError(tag) => write!(f, "shared receive queue {tag} is lost"),
            Self::ReceiveQueueLimit(tag) => {
                write!(f, "shared receive queue {tag} runs out of receives")
            }
            Self::Port(number, event) => write!(f, "port {number}: {event:?}"),
            Self::DeviceFatal => f.write_str("the device is broken"),
            Self::WorkQueueFatal => f.write_str("a work queue is lost"),
            Self::Unknown(raw) => write!(f, "unknown event {raw}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::event_element::EventElement;

    #[test]
    fn every_event_names_the_kind_of_element_that_it_carries() {
        for event_type in 0..40 {
            let event = AsyncEvent::from_raw(RawEvent {
                event_type,
                element: 3,
            });
            let notified = match event {
                AsyncEvent::QueuePair(3, _) => EventElement::QueuePair,
                AsyncEvent::CompletionQueueError(3) => EventElement::CompletionQueue,
                AsyncEvent::ReceiveQueueError(3) | AsyncEvent::ReceiveQueueLimit(3) => {
                    EventElement::ReceiveQueue
                }
                AsyncEvent::Port(3, _) => EventElement::Port,
                _ => EventElement::Nothing,
            };
            assert_eq!(
                notified,
                EventElement::of(event_type),
                "{event_type}: {event}"
            );
        }
        let unknown = AsyncEvent::from_raw(RawEvent {
            event_type: 39,
            element: 0,
        });
        assert_eq!(unknown, AsyncEvent::Unknown(39));
    }
}
