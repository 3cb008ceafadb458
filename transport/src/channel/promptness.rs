//! How soon messages come for which tasks wait, and so whether a look is worth it before a task
//! sleeps.
#![forbid(unsafe_code)]

use std::{
    mem,
    time::{Duration, Instant},
};

/// How long a poll may look before it is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looking {
    /// Not at all: the poll is a waker's, which holds up what its caller has to do next.
    Never,
    /// For some microseconds, in memory: the waker of the poll is not the task's.
    Briefly,
    /// As long as it takes to be woken, once the other tasks have had their turns.
    Long,
}

/// The promptness of one place where tasks wait. To be woken takes an idle processor longer than a
/// prompt answer takes to come.
#[derive(Debug, Default)]
pub(super) struct Promptness {
    /// The time since which a task waits.
    since: Option<Instant>,
    /// Messages in a row that came soon.
    prompt: u8,
    /// A task has let the others of its runtime go before a look.
    has_yielded: bool,
}

impl Promptness {
    /// Notes that a task waits from now on, unless it does already.
    pub(super) fn waits(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Notes that the message has come for which a task waited.
    #[inline]
    pub(super) fn came(&mut self) {
        self.has_yielded = false;
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

    /// The longest look that is worth it for a task that is polled for the `first` time since it
    /// began to wait; `in_memory` says that a look costs no system call.
    ///
    /// A task may have made others ready that wait for its thread. So a long look follows once they
    /// have had their turns: see [`yields`](Self::yields).
    pub(super) fn look(&mut self, first: bool, in_memory: bool) -> Option<Duration> {
        if self.prompt < ENOUGH {
            return None;
        }
        match (mem::take(&mut self.has_yielded), first && in_memory) {
            (true, _) => Some(LOOK),
            (false, true) => Some(BRIEF_LOOK),
            (false, false) => None,
        }
    }

    /// Whether the task that has found nothing is to be polled again behind the others, and looks
    /// then.
    pub(super) fn yields(&mut self, first: bool) -> bool {
        self.has_yielded = first && self.prompt == ENOUGH;
        self.has_yielded
    }

    /// Notes that a look of that length has found nothing.
    pub(super) fn looked_in_vain(&mut self, look: Duration) {
        if look == LOOK {
            self.prompt = 0;
        }
    }
}

/// The longest look: as long as blocking calls look by default.
const LOOK: Duration = Duration::from_micros(50);
/// A look that holds up nobody for longer than waking a task takes.
const BRIEF_LOOK: Duration = Duration::from_micros(4);
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

    /// One whose messages came soon.
    fn prompt() -> Promptness {
        let mut promptness = Promptness::default();
        // The time since passes as well, so a wait of none may be one of some microseconds: as
        // many as it takes, on a machine that stands still now and then.
        while promptness.prompt < ENOUGH {
            assert_eq!(promptness.look(true, true), None);
            wait_for(&mut promptness, Duration::ZERO);
        }
        promptness
    }

    #[test]
    fn a_look_is_worth_it_after_prompt_messages_and_until_a_long_one_finds_nothing() {
        let mut promptness = prompt();
        assert_eq!(promptness.look(true, true), Some(BRIEF_LOOK));
        promptness.looked_in_vain(BRIEF_LOOK);
        assert!(promptness.yields(true));
        assert_eq!(promptness.look(false, true), Some(LOOK));
        // Found without a wait.
        promptness.came();
        assert_eq!(promptness.look(true, true), Some(BRIEF_LOOK));
        promptness.looked_in_vain(LOOK);
        assert_eq!(promptness.look(true, true), None);
        assert!(!promptness.yields(true));
    }

    #[test]
    fn the_others_have_their_turns_before_a_look_at_a_socket() {
        let mut promptness = prompt();
        assert_eq!(promptness.look(true, false), None);
        assert!(promptness.yields(true));
        assert_eq!(promptness.look(false, false), Some(LOOK));
        assert!(!promptness.yields(false), "once for each wait");
        assert_eq!(promptness.look(false, false), None);
        // What comes meanwhile ends the wait.
        assert!(promptness.yields(true));
        promptness.came();
        assert_eq!(promptness.look(true, false), None);
    }

    #[test]
    fn a_late_message_ends_the_looks() {
        let mut promptness = prompt();
        wait_for(&mut promptness, SOON);
        assert_eq!(promptness.look(true, true), None);
    }
}
