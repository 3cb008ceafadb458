//! A limit on how often the log repeats events of one kind.
//!
//! Rules:
//!
//! 1. The first [`TOLD_PER_PERIOD`] events of each kind in a [`PERIOD`] are logged, and the others
//!    are counted.
//! 2. When the period is over, the count is logged, with the first suppressed event as the example,
//!    by the function that noticed that event. Its line therefore has the same target.
//! 3. The clock is an argument.
#![forbid(unsafe_code)]

use std::{
    fmt,
    time::{Duration, Instant},
};

/// Limit on the log lines that strangers and peers can cause.
#[derive(Debug)]
pub struct LogLimit<K> {
    /// Kinds that have occurred, at most as many as the program has.
    kinds: Vec<KindCount<K>>,
}

#[derive(Debug)]
struct KindCount<K> {
    kind: K,
    /// The time at which the period began.
    since: Instant,
    told: u32,
    held: u64,
    /// The first of the events that were counted and not logged.
    example: String,
    tell: fn(&UnloggedEvents),
}

/// Events that were counted instead of logged.
#[derive(Clone, Debug)]
pub struct UnloggedEvents {
    /// The first counted event.
    pub example: String,
    /// The number of counted events.
    pub count: u64,
    /// The time in which the events came.
    pub period: Duration,
    tell: fn(&UnloggedEvents),
}

/// Number of events of a kind that are logged in a period.
pub const TOLD_PER_PERIOD: u32 = 5;
/// Length of a period, or a little less.
pub const PERIOD: Duration = Duration::from_secs(10);

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self { kinds: Vec::new() }
    }
}

impl<K: PartialEq> LogLimit<K> {
    /// Returns whether an event of this kind is to be logged. If not, it was counted, and `tell`
    /// logs the count later, with `example` as its text. Drain [`poll_held`](Self::poll_held)
    /// before.
    pub fn admits(
        &mut self,
        kind: K,
        now: Instant,
        tell: fn(&UnloggedEvents),
        example: impl FnOnce() -> String,
    ) -> bool {
        let known = self.kinds.iter().position(|known| known.kind == kind);
        let at = known.unwrap_or_else(|| {
            self.kinds.push(KindCount {
                kind,
                since: now,
                told: 0,
                held: 0,
                example: String::new(),
                tell,
            });
            self.kinds.len() - 1
        });
        let known = &mut self.kinds[at];
        if known.held == 0 && now.saturating_duration_since(known.since) >= PERIOD {
            (known.since, known.told) = (now, 0);
        }
        if known.told == TOLD_PER_PERIOD {
            if known.held == 0 {
                (known.example, known.tell) = (example(), tell);
            }
            known.held += 1;
            return false;
        }
        known.told += 1;
        true
    }

    /// Takes the count of a period that is over.
    #[must_use]
    pub fn poll_held(&mut self, now: Instant) -> Option<UnloggedEvents> {
        self.poll_held_for(PERIOD, now)
    }

    /// Takes the count up to now, even if its period is not over, because no more events follow.
    #[must_use]
    pub fn poll_last_held(&mut self, now: Instant) -> Option<UnloggedEvents> {
        self.poll_held_for(Duration::ZERO, now)
    }

    fn poll_held_for(&mut self, least: Duration, now: Instant) -> Option<UnloggedEvents> {
        let known = self
            .kinds
            .iter_mut()
            .find(|known| known.held > 0 && now.saturating_duration_since(known.since) >= least)?;
        let held = UnloggedEvents {
            example: std::mem::take(&mut known.example),
            tell: known.tell,
            count: std::mem::take(&mut known.held),
            period: now.saturating_duration_since(known.since),
        };
        (known.since, known.told) = (now, 0);
        Some(held)
    }

    /// Returns the time at which [`poll_held`](Self::poll_held) will have a count, if nothing else
    /// happens.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let holding = self.kinds.iter().filter(|known| known.held > 0);
        // A time that the clock cannot express never comes.
        holding
            .filter_map(|known| known.since.checked_add(PERIOD))
            .min()
    }
}

impl UnloggedEvents {
    /// Logs the count, through the function that noticed the example.
    pub fn warn(&self) {
        (self.tell)(self);
    }
}

impl fmt::Display for UnloggedEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, seconds) = (self.count, self.period.as_secs());
        write!(f, "and {count} more of this kind in the last {seconds} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere(_: &UnloggedEvents) {}

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn of_a_flood_a_few_are_told_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut limit = LogLimit::default();
        let mut told = 0;
        for number in 0..1209_u32 {
            let now = start + number * SECOND / 200;
            assert!(limit.poll_held(now).is_none(), "the period is not over");
            let text = || format!("failure {number}");
            told += u32::from(limit.admits("flood", now, nowhere, text));
        }
        assert_eq!(told, TOLD_PER_PERIOD);
        assert_eq!(limit.next_due(), Some(start + PERIOD));
        let held = limit.poll_held(start + PERIOD).expect("the rest");
        assert_eq!(
            held.to_string(),
            "and 1204 more of this kind in the last 10 s"
        );
        assert_eq!(held.example, "failure 5", "the first that was not told");
        assert!(limit.poll_held(start + PERIOD).is_none());
        assert_eq!(limit.next_due(), None);
        // A new period has begun.
        assert!(limit.admits("flood", start + PERIOD, nowhere, String::new));
    }

    #[test]
    fn kinds_do_not_hide_each_other() {
        let now = Instant::now();
        let mut limit = LogLimit::default();
        for _ in 0..100 {
            limit.admits("flood", now, nowhere, String::new);
        }
        assert!(limit.admits("rare", now, nowhere, String::new));
        assert_eq!(limit.poll_last_held(now).expect("a count").count, 95);
        assert!(limit.poll_last_held(now).is_none());
    }

    #[test]
    fn rare_log_lines_are_always_admitted() {
        let start = Instant::now();
        let mut limit = LogLimit::default();
        for number in 0..100 {
            assert!(limit.admits((), start + number * 3 * SECOND, nowhere, String::new));
        }
        assert_eq!(limit.next_due(), None);
    }
}
