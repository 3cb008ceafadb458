//! Promptness: how soon awaited messages come. It decides whether a task looks for a moment before
//! it sleeps.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The promptness of one place where tasks wait. Waking an idle processor takes longer than a
/// prompt answer.
#[derive(Debug, Default)]
pub struct Promptness {
    /// The time at which a task began to wait.
    since: Option<Instant>,
    /// Messages in a row that came soon.
    prompt: u8,
}

impl Promptness {
    /// Notes that a task begins to wait now, unless it waits already.
    pub(super) fn waits(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Returns whether a task waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// Notes that a message has come that a task waited for.
    #[inline]
    pub fn came(&mut self) {
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

    /// Returns whether a task that begins to wait should look at memory for [`LOOK`].
    pub(super) fn is_worth_a_look(&self) -> bool {
        self.prompt == ENOUGH
    }
}

/// The length of a look. A look delays the other tasks of its thread for no longer than waking a
/// task takes.
pub(super) const LOOK: Duration = Duration::from_micros(4);
/// A look might have found a message that comes within this time, which includes the time of waking
/// the task.
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
        // Time also passes between the test's own steps, so a wait of zero may measure more than
        // that. The loop repeats as often as a stalling machine requires.
        while promptness.prompt < ENOUGH {
            assert!(!promptness.is_worth_a_look());
            wait_for(&mut promptness, Duration::ZERO);
        }
        assert!(promptness.is_worth_a_look());
        // This message was found without a wait.
        promptness.came();
        assert!(promptness.is_worth_a_look());
        wait_for(&mut promptness, SOON);
        assert!(!promptness.is_worth_a_look());
    }
}
