//! The number of an engine in its node. The id of each session carries it.
#![forbid(unsafe_code)]

use std::fmt;

/// The number of an engine in its node, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineId(u8);

impl EngineId {
    /// Returns the number of the engine at `index`, which is below [`MOST_ENGINES`].
    ///
    /// # Panics
    /// If `index` is [`MOST_ENGINES`] or more.
    #[must_use]
    pub fn new(index: usize) -> Self {
        assert!(index < MOST_ENGINES, "engine {index} of {MOST_ENGINES}");
        Self(index as u8)
    }

    /// Returns the engine's index among the engines of its node.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the engine of a session.
    #[inline]
    pub(crate) fn of_session(id: u64) -> Self {
        Self((id >> SESSION_BITS) as u8)
    }

    /// Returns the id of the engine's first session; the next ones count up from it.
    pub(crate) fn first_session(self) -> u64 {
        u64::from(self.0) << SESSION_BITS | 1
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The most engines of a node.
pub const MOST_ENGINES: usize = 64;

/// Number of bits of a session's id below the number of its engine: enough for more sessions than
/// any engine begins. The upper bits hold the engine's number, and leave the two bits that an epoll
/// token adds.
const SESSION_BITS: u32 = 48;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_session_is_of_the_engine_that_numbered_it(
            index in 0..MOST_ENGINES,
            earlier in 0..(1u64 << SESSION_BITS) - 1,
        ) {
            let engine = EngineId::new(index);
            let session = engine.first_session() + earlier;
            prop_assert_eq!(EngineId::of_session(session), engine);
            // An epoll token adds two bits.
            prop_assert_eq!(session << 2 >> 2, session);
        }
    }
}
