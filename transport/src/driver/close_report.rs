//! What is told of a node that was closed.
#![forbid(unsafe_code)]

/// What a closed node could not deliver.
#[must_use = "it says what was not delivered"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// Per channel with something undelivered.
    pub undelivered: Vec<Undelivered>,
}

/// One channel's undelivered messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The channel.
    pub channel: String,
    /// The peer's address.
    pub peer: String,
    /// Messages sent.
    pub sent: u64,
    /// Messages that the peer's engine holds: at least so many.
    pub received: u64,
}
