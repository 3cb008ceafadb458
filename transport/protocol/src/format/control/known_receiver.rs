//! The progress of a receiving end, for a sender that goes on over new wires.
#![forbid(unsafe_code)]

use crate::format::{counters::Counters, record};

/// What the receiving end of a channel tells its sender over new wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownReceiver {
    /// Messages that arrived, large ones counted when announced.
    pub arrived: u64,
    /// The ring position behind the last of them.
    pub arrived_position: u64,
    /// What it counts; large messages that are announced and not whole end `received`.
    pub counters: Counters,
}

impl KnownReceiver {
    /// Nothing has arrived of a channel of that alignment.
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
