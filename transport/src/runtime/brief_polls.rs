//! Brief polls of tasks before they wait. Waking an idle processor takes longer than a prompt
//! answer, but a poll in vain delays the other tasks.
#![forbid(unsafe_code)]

/// The record of one place where tasks poll before they wait. Polls that find nothing become rare.
#[derive(Debug, Default)]
pub struct BriefPolls {
    /// Polls in a row that found nothing.
    misses: u32,
    /// Polls to leave out, since the last ones found nothing.
    left_out: u32,
}

impl BriefPolls {
    /// Returns whether a task that begins to wait should poll for a moment.
    #[inline]
    pub(crate) fn is_worth_one(&mut self) -> bool {
        let is_worth = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_worth
    }

    /// Notes whether a poll has found something.
    pub(crate) fn has_polled(&mut self, has_found: bool) {
        self.misses = match has_found {
            true => 0,
            false => (self.misses + 1).min(MOST_MISSES),
        };
        self.left_out = ((1u32 << self.misses) >> PATIENT_MISSES).saturating_sub(1);
    }
}

/// Polls in vain after which polls are left out, twice as many with each.
const PATIENT_MISSES: u32 = 3;
/// With this many polls in vain, one of 128 is made.
const MOST_MISSES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_in_vain_become_rare_and_one_that_finds_something_makes_them_frequent() {
        let mut brief_polls = BriefPolls::default();
        let mut polls = 0;
        for _ in 0..10_000 {
            if brief_polls.is_worth_one() {
                brief_polls.has_polled(false);
                polls += 1;
            }
        }
        assert!((80..100).contains(&polls), "{polls}");
        while !brief_polls.is_worth_one() {}
        brief_polls.has_polled(true);
        assert!(brief_polls.is_worth_one());
    }
}
