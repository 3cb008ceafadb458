//! The order in which addresses are dialed, and how many a second.
//!
//! Rules:
//!
//! 1. An address is not dialed before its time.
//! 2. Of those whose time has come, the ones that failed less often in a row come first, so that an
//!    address that is new, or has just lost its session, does not wait behind dead ones.
//! 3. First attempts and repeated ones are limited apart, each to a number in a [`WINDOW`]. The rest
//!    waits for the next window.
//! 4. Addresses that are due at the same time come in an order that differs from one keeping to
//!    another.

use std::{
    collections::{BTreeSet, hash_map::RandomState},
    hash::BuildHasher,
    time::{Duration, Instant},
};

/// The addresses that are to be dialed.
pub(super) struct Schedule {
    /// The addresses by their failures in a row, up to the most that are told apart.
    levels: [BTreeSet<(Instant, u64, String)>; LEVELS],
    /// Of first attempts, and of repeated ones.
    paces: [Pace; 2],
    /// Draws the order of those that are due at the same time.
    drawn: RandomState,
}

/// An address's place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DuePlace {
    level: usize,
    at: Instant,
}

/// A limit on the attempts that begin in a window of time.
struct Pace {
    most: usize,
    began: Instant,
    begun: usize,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            levels: Default::default(),
            paces: [FIRST_ATTEMPTS, REPEATED_ATTEMPTS].map(|most| Pace::new(most, now)),
            drawn: RandomState::new(),
        }
    }

    /// Enters an address that has failed this often in a row, to be dialed at `at` at the earliest.
    pub(super) fn put(&mut self, address: &str, failures: u32, at: Instant) -> DuePlace {
        let level = usize::try_from(failures).map_or(LEVELS - 1, |level| level.min(LEVELS - 1));
        let place = DuePlace { level, at };
        let entry = self.entry(address, place);
        self.levels[level].insert(entry);
        place
    }

    /// Takes out an address that is not to be dialed any more.
    pub(super) fn remove(&mut self, address: &str, place: DuePlace) {
        let entry = self.entry(address, place);
        self.levels[place.level].remove(&entry);
    }

    /// Returns the time at which [`take_due`](Self::take_due) has an address.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let firsts = self.levels.iter().enumerate();
        let due = firsts.filter_map(|(level, addresses)| {
            let (at, ..) = addresses.first()?;
            let free = self.paces[level.min(1)].free_at();
            Some(free.map_or(*at, |free| free.max(*at)))
        });
        due.min()
    }

    /// Takes the addresses that are dialed now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<String> {
        let mut due = Vec::new();
        for (level, addresses) in self.levels.iter_mut().enumerate() {
            let pace = &mut self.paces[level.min(1)];
            while addresses.first().is_some_and(|(at, ..)| *at <= now) && pace.begin(now) {
                due.extend(addresses.pop_first().map(|(.., address)| address));
            }
        }
        due
    }

    fn entry(&self, address: &str, place: DuePlace) -> (Instant, u64, String) {
        let drawn = self.drawn.hash_one(address);
        (place.at, drawn, address.to_owned())
    }
}

impl Pace {
    fn new(most: usize, now: Instant) -> Self {
        Self {
            most,
            began: now,
            begun: 0,
        }
    }

    /// Notes an attempt, unless the window has its number of them.
    fn begin(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.began) >= WINDOW {
            (self.began, self.begun) = (now, 0);
        }
        let may_begin = self.begun < self.most;
        self.begun += usize::from(may_begin);
        may_begin
    }

    /// Returns the time of the next attempt, if this window has its number of them.
    fn free_at(&self) -> Option<Instant> {
        (self.begun >= self.most).then(|| self.began + WINDOW)
    }
}

/// The counts of failures in a row that are told apart: after as many, the pause has grown to its
/// longest.
const LEVELS: usize = 7;
/// The time for which attempts are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// The most first attempts in a window: ten thousand addresses take 2.5 s. To dial one takes some
/// 20 µs.
const FIRST_ATTEMPTS: usize = 400;
/// The most repeated attempts in a window. Up to some 1,500 dead addresses are dialed after their
/// pauses, and more of them less often.
const REPEATED_ATTEMPTS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> String {
        format!("host-{number}:7000")
    }

    #[test]
    fn an_address_is_dialed_at_its_time_and_once() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        assert_eq!(schedule.next_due(), None);
        let later = now + Duration::from_secs(3);
        schedule.put("a:1", 1, later);
        let removed = schedule.put("b:1", 1, now);
        assert_eq!(schedule.next_due(), Some(now));
        schedule.remove("b:1", removed);
        assert_eq!(schedule.next_due(), Some(later));
        assert!(schedule.take_due(now).is_empty());
        assert_eq!(schedule.take_due(later), ["a:1"]);
        assert_eq!(schedule.next_due(), None);
    }

    #[test]
    fn a_new_address_is_not_behind_thousands_of_dead_ones() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        for number in 0..20_000 {
            schedule.put(&name(number), 20, now);
        }
        let later = now + Duration::from_secs(1);
        schedule.put("zone-z:7000", 0, later);
        schedule.put("zone-y:7000", 1, later);
        let due = schedule.take_due(later);
        assert_eq!(due.len(), 1 + REPEATED_ATTEMPTS);
        assert_eq!(due[..2], ["zone-z:7000", "zone-y:7000"]);
    }

    #[test]
    fn twenty_thousand_dead_addresses_are_dialed_at_a_bounded_rate() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for number in 0..20_000 {
            schedule.put(&name(number), 0, start);
        }
        let (mut first, mut again) = (BTreeSet::new(), 0);
        let mut now = start;
        let minute = start + Duration::from_secs(60);
        while let Some(at) = schedule.next_due().filter(|at| *at < minute) {
            now = now.max(at);
            for address in schedule.take_due(now) {
                // Dead for ever, with the longest pause at once.
                schedule.put(&address, 9, now + Duration::from_secs(5));
                if !first.insert(address) {
                    again += 1;
                }
            }
        }
        assert_eq!(first.len(), 20_000);
        let most = 600 * REPEATED_ATTEMPTS;
        assert!((most * 8 / 10..=most).contains(&again), "{again}");
    }

    #[test]
    fn the_first_round_does_not_go_by_name() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        for number in 0..FIRST_ATTEMPTS {
            schedule.put(&name(number), 0, now);
        }
        let due = schedule.take_due(now);
        assert_eq!(due.len(), FIRST_ATTEMPTS);
        assert!(!due.is_sorted());
    }
}
