//! The id of a work request: its operation, its slot and that slot's generation.
//!
//! The 64 bits travel to the device and come back in a completion, also in a failed one,
//! of which little else can be read. The generation tells a completion that is late from
//! one that belongs to the slot's present use.
//!
//! | bits | meaning |
//! |---|---|
//! | 56..64 | operation |
//! | 32..56 | generation |
//! | 0..32 | slot |
#![forbid(unsafe_code)]

use std::fmt;

use super::enumeration::enumeration;

/// The identity of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(u64);

impl WorkId {
    /// Creates an id of its parts. Only the lower 24 bits of the generation count.
    #[inline]
    #[must_use]
    pub const fn new(operation: Operation, slot: u32, generation: u32) -> Self {
        let generation = generation & Self::GENERATION_MASK;
        Self((operation.to_raw() as u64) << 56 | (generation as u64) << 32 | slot as u64)
    }

    /// The lower 24 bits of a generation, which are the bits that come back.
    pub const GENERATION_MASK: u32 = (1 << 24) - 1;

    /// Parses a number from the device.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the number for the device.
    #[inline]
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0
    }

    /// Returns the operation that was requested.
    #[inline]
    #[must_use]
    pub const fn operation(self) -> Operation {
        Operation::from_raw((self.0 >> 56) as u8)
    }

    /// Returns the slot that the request used.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Returns the number of the use of the slot.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & Self::GENERATION_MASK
    }
}

impl fmt::Debug for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}.{}",
            self.operation(),
            self.slot(),
            self.generation()
        )
    }
}

enumeration! {
    /// The operation of a work request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    Operation(u8), "operation {}", {
        /// A send.
        Send = 1, "send";
        /// Memory for what arrives.
        Receive = 2, "receive";
        /// An RDMA write.
        Write = 3, "write";
        /// The last request of a queue that is being drained.
        Drain = 4, "drain";
        /// An RDMA read.
        Read = 5, "read";
        /// A compare and swap, or a fetch and add.
        Atomic = 6, "atomic";
        /// A memory window that is bound or invalidated.
        Window = 7, "window";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_parts_come_back(slot: u32, generation: u32, raw: u64) {
            for operation in [
                Operation::Send,
                Operation::Receive,
                Operation::Write,
                Operation::Drain,
                Operation::Read,
                Operation::Atomic,
                Operation::Window,
            ] {
                let id = WorkId::from_raw(WorkId::new(operation, slot, generation).to_raw());
                prop_assert_eq!(id.operation(), operation);
                prop_assert_eq!(id.slot(), slot);
                prop_assert_eq!(id.generation(), generation & WorkId::GENERATION_MASK);
            }
            // Any value that a device returns can be read.
            let id = WorkId::from_raw(raw);
            prop_assert_eq!(WorkId::new(id.operation(), id.slot(), id.generation()), id);
        }
    }

    #[test]
    fn a_foreign_id_is_told_as_one() {
        assert_eq!(WorkId::from_raw(0).operation(), Operation::Unknown(0));
        assert_eq!(WorkId::new(Operation::Send, 7, 3).to_string(), "send 7.3");
    }
}
