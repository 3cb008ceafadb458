//! Promptness: how soon messages come for which tasks wait, and so whether a look is worth it
//! before a task sleeps.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The promptness of one place where tasks wait. To be woken takes an idle processor longer than a
/// prompt answer takes to come.
#[derive(Debug, Default)]
pub(super) struct Promptness {
    /// The time since which a task waits.
    since: Option<Instant>,
    /// Messages in a row that came soon.
    prompt: u8,
}

impl Promptness {
    /// Notes that a task waits from now on, unless it does already.
    pub(super) fn waits(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Notes that the message has come for which a task waited.
    #[inline]
    pub(super) fn came(&mut self) {
        if let Some(since) = self.since.take() {
            self.came_after(since.elapsed());
        }
    }

    fn came_after(&mut self, waited: Duration) {
        self.prompt = match waited < SOON {
            true => (self.prompt + 1).min(ENOUGH),
            false => 0,
        };
    }

    /// Returns whether a look in memory, of [`LOOK`], is worth it for a task that begins to wait.
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.prompt == ENOUGH
    }
}

/// The length of a look. It holds up the other tasks of its thread for no longer than waking a task
/// takes.
pub(super) const LOOK: Duration = Duration::from_micros(4);
/// A message that comes within this time is one that a look might have found: it includes the time
/// that waking the task takes.
const SOON: Duration = Duration::from_micros(150);
/// Number of prompt messages in a row that make a look worth it.
const ENOUGH: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(promptness: &mut Promptness, waited: Duration) {
        promptness.since = Instant::now().checked_sub(waited);
        promptness.came();
    }

    #[test]
    fn a_look_is_worth_it_after_prompt_messages_and_until_a_late_one() {
        let mut promptness = Promptness::default();
        // The time since passes as well, so a wait of none may be one of some microseconds: as
        // many as it takes, on a machine that stands still now and then.
        while promptness.prompt < ENOUGH {
            assert!(!promptness.is_worth_a_look());
            wait_for(&mut promptness, Duration::ZERO);
        }
        assert!(promptness.is_worth_a_look());
        // Found without a wait.
        promptness.came();
        assert!(promptness.is_worth_a_look());
        wait_for(&mut promptness, SOON);
        assert!(!promptness.is_worth_a_look());
    }
}
