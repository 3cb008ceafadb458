//! The progress of a receiving end, for a sender that goes on over new wires.
#![forbid(unsafe_code)]

use crate::format::{counters::Counters, record};

/// The state of a channel's receiving end, as it is told to the sender over new wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownReceiver {
    /// Messages that arrived, large ones counted when announced.
    pub arrived: u64,
    /// The ring position behind the last of them.
    pub arrived_position: u64,
    /// The receiver's counters; large messages that are announced and not whole end `received`.
    pub counters: Counters,
}

impl KnownReceiver {
    /// Creates the state of a channel of that alignment before any message has arrived.
    #[must_use]
    pub fn nothing(alignment: usize) -> Self {
        let position = record::first_position(alignment);
        Self {
            arrived: 0,
            arrived_position: position,
            counters: Counters {
                released_position: position,
                ..Counters::default()
            },
        }
    }
}
