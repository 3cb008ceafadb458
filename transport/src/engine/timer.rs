//! Deadlines as a table: the smallest entry is the next wake-up.
#![forbid(unsafe_code)]

use std::time::Instant;

/// What a session may be waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Timer {
    /// A closing session gives its last bytes and the peer's goodbye until then.
    Linger,
    /// A channel that cannot send has been so for long enough to say it.
    Stall,
}

const TIMERS: [Timer; 2] = [Timer::Linger, Timer::Stall];

/// The deadlines of one session.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimerTable {
    expiries: [Option<Instant>; TIMERS.len()],
}

impl TimerTable {
    /// Sets `timer` to go off at `expiry`, replacing an earlier setting.
    pub fn set(&mut self, timer: Timer, expiry: Instant) {
        self.expiries[timer as usize] = Some(expiry);
    }

    /// Stops `timer`.
    pub fn stop(&mut self, timer: Timer) {
        self.expiries[timer as usize] = None;
    }

    /// Whether `timer` is running.
    #[must_use]
    pub fn is_set(&self, timer: Timer) -> bool {
        self.expiries[timer as usize].is_some()
    }

    /// When [`poll_expired`](Self::poll_expired) has something to say next.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.expiries.iter().flatten().min().copied()
    }

    /// Takes one timer that has gone off by `now`; drained to `None` after `now` moved.
    #[must_use]
    pub fn poll_expired(&mut self, now: Instant) -> Option<Timer> {
        let timer = TIMERS
            .into_iter()
            .find(|&timer| self.expiries[timer as usize].is_some_and(|expiry| expiry <= now))?;
        self.stop(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_smallest_entry_is_next_and_goes_off_once() {
        let start = Instant::now();
        let mut table = TimerTable::default();
        assert_eq!(table.next(), None);
        table.set(Timer::Stall, start + Duration::from_secs(2));
        table.set(Timer::Linger, start + Duration::from_secs(1));
        assert_eq!(table.next(), Some(start + Duration::from_secs(1)));
        assert_eq!(table.poll_expired(start), None);
        assert_eq!(
            table.poll_expired(start + Duration::from_secs(2)),
            Some(Timer::Linger)
        );
        assert_eq!(
            table.poll_expired(start + Duration::from_secs(2)),
            Some(Timer::Stall)
        );
        assert_eq!(table.poll_expired(start + Duration::from_secs(2)), None);
    }
}
