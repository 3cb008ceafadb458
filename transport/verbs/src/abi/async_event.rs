//! Asynchronous events of a device.
#![forbid(unsafe_code)]

use std::fmt;

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
    /// Translates `enum ibv_event_type`, with the number or tag of the object that the event names.
    pub(crate) fn from_raw(event_type: u32, element: u64) -> Self {
        use QueuePairEvent as Pair;
        let pair = |event| Self::QueuePair(element as u32, event);
        let port = |event| Self::Port(element as u8, event);
        match event_type {
            0 => Self::CompletionQueueError(element),
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
            14 => Self::ReceiveQueueError(element),
            15 => Self::ReceiveQueueLimit(element),
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

    #[test]
    fn an_event_names_its_object_and_a_later_kernels_event_is_kept() {
        let events = [0, 1, 8, 15, 18, 39].map(|raw| AsyncEvent::from_raw(raw, 3));
        let expected = [
            AsyncEvent::CompletionQueueError(3),
            AsyncEvent::QueuePair(3, QueuePairEvent::Fatal),
            AsyncEvent::DeviceFatal,
            AsyncEvent::ReceiveQueueLimit(3),
            AsyncEvent::Port(3, PortEvent::GidChange),
            AsyncEvent::Unknown(39),
        ];
        assert_eq!(events, expected);
    }
}
