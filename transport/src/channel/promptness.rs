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
    /// Looks in a row that found nothing.
    misses: u32,
    /// Looks to leave out, since the last ones found nothing.
    left_out: u32,
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

    /// Returns whether a task that begins to wait should look for a moment.
    pub(super) fn is_worth_a_look(&mut self) -> bool {
        if self.prompt < ENOUGH {
            return false;
        }
        let is_worth = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_worth
    }

    /// Notes whether a look has found a message.
    pub(super) fn has_looked(&mut self, has_found: bool) {
        self.misses = match has_found {
            true => 0,
            false => (self.misses + 1).min(MOST_MISSES),
        };
        self.left_out = ((1u32 << self.misses) >> PATIENT_MISSES).saturating_sub(1);
    }
}

/// A look might have found a message that comes within this time, which includes the time of waking
/// the task.
const SOON: Duration = Duration::from_micros(150);
/// Looks in vain after which looks are left out, twice as many with each.
const PATIENT_MISSES: u32 = 3;
/// With this many looks in vain, one of 127 is made.
const MOST_MISSES: u32 = 10;
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

    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_a_message_makes_them_frequent() {
        let mut promptness = Promptness {
            prompt: ENOUGH,
            ..Promptness::default()
        };
        let mut looks = 0;
        for _ in 0..10_000 {
            if promptness.is_worth_a_look() {
                promptness.has_looked(false);
                looks += 1;
            }
        }
        assert!((80..100).contains(&looks), "{looks}");
        while !promptness.is_worth_a_look() {}
        promptness.has_looked(true);
        assert!(promptness.is_worth_a_look());
    }
}
