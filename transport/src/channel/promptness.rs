//! How soon messages come for which tasks wait, and so whether a look is worth it before a task
//! sleeps.
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
    pub(super) fn came(&mut self) {
        let waited = self.since.take().map(|since| since.elapsed());
        self.prompt = match waited {
            Some(waited) if waited < SOON => (self.prompt + 1).min(ENOUGH),
            Some(_) => 0,
            None => self.prompt,
        };
    }

    pub(super) fn expects_soon(&self) -> bool {
        self.prompt == ENOUGH
    }

    /// Notes whether a look has found a message.
    pub(super) fn looked(&mut self, has_found: bool) {
        if !has_found {
            self.prompt = 0;
        }
    }
}

/// A message that comes within this time is one that a look might have found: it includes the time
/// that waking the task takes.
const SOON: Duration = Duration::from_micros(150);
/// As many of them in a row make a look worth it.
const ENOUGH: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(promptness: &mut Promptness, waited: Duration) {
        promptness.since = Instant::now().checked_sub(waited);
        promptness.came();
    }

    #[test]
    fn a_look_is_worth_it_after_prompt_messages_and_until_one_finds_nothing() {
        let mut promptness = Promptness::default();
        // The time since passes as well, so a wait of none may be one of some microseconds: as
        // many as it takes, on a machine that stands still now and then.
        while !promptness.expects_soon() {
            wait_for(&mut promptness, Duration::ZERO);
        }
        promptness.looked(true);
        // Found without a wait.
        promptness.came();
        assert!(promptness.expects_soon());
        promptness.looked(false);
        assert!(!promptness.expects_soon());
    }

    #[test]
    fn a_late_message_ends_the_looks() {
        let mut promptness = Promptness {
            prompt: ENOUGH,
            ..Promptness::default()
        };
        wait_for(&mut promptness, SOON);
        assert!(!promptness.expects_soon());
    }
}
