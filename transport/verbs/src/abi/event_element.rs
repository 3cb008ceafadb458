//! The object that an asynchronous event names.
#![forbid(unsafe_code)]

/// The element of `union ibv_async_event::element` that a kind of event sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventElement {
    /// `cq`.
    CompletionQueue,
    /// `qp`.
    QueuePair,
    /// `srq`.
    ReceiveQueue,
    /// `port_num`.
    Port,
    /// No element, or one that is not used here.
    Nothing,
}

impl EventElement {
    /// Parses a value of `enum ibv_event_type`
    /// ([`ibv_get_async_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html)).
    #[must_use]
    pub fn of(event_type: u32) -> Self {
        match event_type {
            0 => Self::CompletionQueue,
            1..=7 | 16 => Self::QueuePair,
            9..=13 | 17 | 18 | 20 => Self::Port,
            14 | 15 => Self::ReceiveQueue,
            _ => Self::Nothing,
        }
    }
}
