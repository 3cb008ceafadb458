//! A limit on how often the log repeats events of one kind.
//!
//! Rules:
//!
//! 1. The first [`REPORTED_PER_PERIOD`] events of each kind in a [`PERIOD`] are logged, and the others
//!    are counted.
//! 2. When the period is over, the count is logged, with the first suppressed event as the example,
//!    by the function that noticed that event. Its line therefore has the same target.
//! 3. The clock is an argument.
//!
//! Each node has a limit of its own for what its peers can cause. What belongs to no node is logged by
//! [`warn_limited!`](crate::warn_limited), within one limit of the process.
#![forbid(unsafe_code)]

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::fork;

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
    notified: u32,
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
pub const REPORTED_PER_PERIOD: u32 = 5;
/// Length of a period, or a little less.
pub const PERIOD: Duration = Duration::from_secs(10);

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> LogLimit<K> {
    /// Makes a limit of which nothing has occurred yet.
    #[must_use]
    pub const fn new() -> Self {
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
                notified: 0,
                held: 0,
                example: String::new(),
                tell,
            });
            self.kinds.len() - 1
        });
        let known = &mut self.kinds[at];
        if known.held == 0 && now.saturating_duration_since(known.since) >= PERIOD {
            (known.since, known.notified) = (now, 0);
        }
        if known.notified == REPORTED_PER_PERIOD {
            if known.held == 0 {
                (known.example, known.tell) = (example(), tell);
            }
            known.held += 1;
            return false;
        }
        known.notified += 1;
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
        (known.since, known.notified) = (now, 0);
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

// ---- The limit of the process ----------------------------------------------------------------

/// The warnings of the process. The kind of one is the place of its line in the source.
static OF_PROCESS: Mutex<LogLimit<&'static str>> = Mutex::new(LogLimit::new());
/// Warnings were counted and their count must still be logged. Written under the lock.
static IS_HOLDING: AtomicBool = AtomicBool::new(false);

fn of_process() -> MutexGuard<'static, LogLimit<&'static str>> {
    OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether to log a warning of the process. If not, it was counted, and `tell` logs the count
/// when a node runs a turn, or another warning comes, after its period.
pub fn process_admits(
    kind: &'static str,
    tell: fn(&UnloggedEvents),
    example: impl FnOnce() -> String,
) -> bool {
    // In a fork of the process, a thread that does not exist there may hold the lock.
    if fork::is_child() {
        return true;
    }
    let now = Instant::now();
    tell_held_of_process(now);
    let mut limit = of_process();
    let is_notified = limit.admits(kind, now, tell, example);
    if !is_notified {
        IS_HOLDING.store(true, Ordering::Relaxed);
    }
    is_notified
}

/// Returns whether counts of the process wait to be logged by
/// [`tell_held_of_process`].
#[inline]
#[must_use]
pub fn process_holds() -> bool {
    IS_HOLDING.load(Ordering::Relaxed)
}

/// Logs the counts of the process whose periods are over.
pub fn tell_held_of_process(now: Instant) {
    while process_holds() && !fork::is_child() {
        let held = {
            let mut limit = of_process();
            let held = limit.poll_held(now);
            IS_HOLDING.store(limit.next_due().is_some(), Ordering::Relaxed);
            held
        };
        match held {
            // Outside of the lock: a subscriber may warn.
            Some(held) => held.warn(),
            None => break,
        }
    }
}

/// Returns the time of the next count of the process to log, if there is one.
#[must_use]
pub fn next_due_of_process() -> Option<Instant> {
    (process_holds() && !fork::is_child()).then(|| of_process().next_due())?
}

/// Logs a warning that can come again and again and is no node's, or of no node alone, by the macros of
/// `tracing`. After an example, which stands for those that are counted, follows what
/// `tracing::warn!` takes. If there were too many from this line, it is counted, and logged as a debug
/// message.
#[macro_export]
macro_rules! warn_limited {
    ($example:expr, $($line:tt)+) => {{
        let kind = concat!(module_path!(), ":", line!());
        let tell: fn(&$crate::log_limit::UnloggedEvents) =
            |held| tracing::warn!(example = %held.example, count = held.count, "{held}");
        match $crate::log_limit::process_admits(kind, tell, || $example.to_string()) {
            true => tracing::warn!($($line)+),
            false => tracing::debug!($($line)+),
        }
    }};
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
        let mut notified = 0;
        for number in 0..1209_u32 {
            let now = start + number * SECOND / 200;
            assert!(limit.poll_held(now).is_none(), "the period is not over");
            let text = || format!("failure {number}");
            notified += u32::from(limit.admits("flood", now, nowhere, text));
        }
        assert_eq!(notified, REPORTED_PER_PERIOD);
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
    fn the_process_has_a_limit_for_each_line() {
        let notified = (0..100).filter(|_| process_admits("a flood", nowhere, String::new));
        assert_eq!(notified.count(), REPORTED_PER_PERIOD as usize);
        assert!(process_admits("another line", nowhere, String::new));
        assert!(process_holds());
        assert!(next_due_of_process().is_some());
        tell_held_of_process(Instant::now() + PERIOD);
        assert!(!process_holds());
        assert_eq!(next_due_of_process(), None);
        assert!(process_admits("a flood", nowhere, String::new));
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
