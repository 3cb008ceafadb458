//! What a broker lends.
#![forbid(unsafe_code)]

/// The credit that a broker lends, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerSettings {
    /// The number of all arrival bytes or receive buffers.
    pub capacity: u64,
    /// The reserve of each session beside its lent credit, for talk about credit.
    pub reserve: u64,
    /// The credit that each session has beside what it is lent, and nobody else is lent.
    pub floor: u64,
    /// The credit that each session is lent for a turn when it has nothing else, and nobody else is
    /// lent. If this and the floor are 0, a session has no credit while others keep all of it.
    pub spare: u64,
    /// The largest number of sessions. The reserve, floor and spare credit of all of them are set
    /// aside.
    pub max_sessions: u64,
    /// The least credit that is of use.
    pub grain: u64,
    /// The most that a session may be lent.
    pub most: u64,
}

impl BrokerSettings {
    /// Returns what an inactive session keeps beside its floor: with it, a grain.
    pub(super) fn idle_keeps(&self) -> u64 {
        self.grain.saturating_sub(self.floor)
    }
}
