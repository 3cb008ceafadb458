//! The choice of sends that ask for a completion.
//!
//! A completion costs the device a write and the engine a poll, and it covers all sends before it.
//! So the engine requests few completions: one in [`INTERVAL`] sends, and one with each frame that
//! ends something, after which memory can be given back or a session be closed. Failures need no
//! request, because a send that fails completes in any case.
#![forbid(unsafe_code)]

/// Sends to one completion that is asked for. Half the shortest send queue, so that the queue never
/// waits for a completion that was not requested.
pub const INTERVAL: u32 = 32;

/// The number of sends since the last completion was requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalCadence {
    silent: u32,
}

impl SignalCadence {
    /// Returns whether the next send asks for a completion; `ends_something` if memory or the
    /// session waits for it.
    #[inline]
    pub fn is_due(&mut self, ends_something: bool) -> bool {
        self.silent += 1;
        let is_due = ends_something || self.silent == INTERVAL;
        if is_due {
            self.silent = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_an_interval_and_every_end() {
        let mut cadence = SignalCadence::default();
        let due = (1..=3 * INTERVAL).filter(|_| cadence.is_due(false));
        assert_eq!(due.count(), 3);
        assert!(cadence.is_due(true));
        let next = (1..).find(|_| cadence.is_due(false));
        assert_eq!(
            next,
            Some(INTERVAL),
            "counted from the last that was asked for"
        );
    }
}
