//! Deadlines as a table: the smallest entry is the next wake-up.
#![forbid(unsafe_code)]

use std::time::Instant;

/// What a session may be waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Timer {
    /// A closing session gives its last bytes and the peer's goodbye until then.
    Linger,
    /// A queue pair on its way out is given up then.
    Drain,
}

const TIMERS: [Timer; 2] = [Timer::Linger, Timer::Drain];

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
        self.expiries[timer as usize] = None;
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_timer_goes_off_once_when_it_was_last_set_to() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut table = TimerTable::default();
        assert_eq!(table.next(), None);
        table.set(Timer::Linger, start + second);
        table.set(Timer::Linger, start + 2 * second);
        assert_eq!(table.next(), Some(start + 2 * second));
        assert_eq!(table.poll_expired(start + second), None);
        assert_eq!(table.poll_expired(start + 2 * second), Some(Timer::Linger));
        assert_eq!(table.poll_expired(start + 3 * second), None);
        assert_eq!(table.next(), None);
    }
}
