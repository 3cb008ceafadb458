//! What a sender wants to hear of.
#![forbid(unsafe_code)]

/// What a waiting sender wants to hear of. A target of 0 asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Tell once so many messages are received.
    pub received: u64,
    /// Tell once so many messages are released.
    pub released: u64,
    /// Tell once so many messages are acknowledged, or never can be.
    pub acknowledged: u64,
}

impl Ask {
    /// To hear that message `sequence` is received.
    #[must_use]
    pub fn received(sequence: u64) -> Self {
        Self {
            received: sequence,
            ..Self::default()
        }
    }

    /// To hear that message `sequence` is acknowledged, or never will be.
    #[must_use]
    pub fn acknowledged(sequence: u64) -> Self {
        Self {
            acknowledged: sequence,
            ..Self::default()
        }
    }

    /// Wants what `other` wants as well.
    pub fn join(&mut self, other: Ask) {
        self.received = self.received.max(other.received);
        self.released = self.released.max(other.released);
        self.acknowledged = self.acknowledged.max(other.acknowledged);
    }
}
