//! Deadlines as a table: the smallest entry is the next wake-up.
#![forbid(unsafe_code)]

use std::time::Instant;

/// An event that a session may be waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Timer {
    /// A closing session waits until then for its last bytes to go out and for the peer's goodbye.
    Linger,
    /// Looks again whether threads have left the senders of a closing session.
    Leave,
    /// A queue pair that is being torn down is given up then.
    Drain,
    /// Senders that wait for room are looked at again then.
    Stall,
    /// Ends that a call without `open_timeout` waits for are looked at then.
    Open,
    /// Tries again to pass what the Unix socket did not take, or to take what this process could
    /// not take from it.
    Pass,
    /// Receivers that lack memory for what has come try again then.
    Memory,
    /// A session without wires is reported as suspended then.
    Notice,
    /// The peer is dialed again then.
    Redial,
    /// A session that has got no wires until then is over.
    Verdict,
    /// Wakers that handles left for a time are called then.
    Alarm,
    /// A session's wires are as old as its node allows then.
    Age,
    /// A peer whose changes are waited for is asked then.
    Changes,
}

const TIMERS: [Timer; 13] = [
    Timer::Linger,
    Timer::Leave,
    Timer::Drain,
    Timer::Stall,
    Timer::Open,
    Timer::Pass,
    Timer::Memory,
    Timer::Notice,
    Timer::Redial,
    Timer::Verdict,
    Timer::Alarm,
    Timer::Age,
    Timer::Changes,
];

/// The deadlines of one session.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimerTable {
    expiries: [Option<Instant>; TIMERS.len()],
    /// The earliest of them. Each turn asks for it; they change rarely.
    next: Option<Instant>,
}

impl TimerTable {
    /// Sets `timer` to go off at `expiry`, replacing an earlier setting.
    pub fn set(&mut self, timer: Timer, expiry: Instant) {
        self.change(timer, Some(expiry));
    }

    /// Stops `timer`, so that it will not go off.
    pub fn clear(&mut self, timer: Timer) {
        self.change(timer, None);
    }

    fn change(&mut self, timer: Timer, expiry: Option<Instant>) {
        self.expiries[timer as usize] = expiry;
        self.next = self.expiries.iter().flatten().min().copied();
    }

    /// Returns whether `timer` will go off.
    #[must_use]
    pub fn is_set(&self, timer: Timer) -> bool {
        self.expiries[timer as usize].is_some()
    }

    /// Sets `timer` to go off at `expiry`, unless it goes off sooner in any case.
    pub fn set_sooner(&mut self, timer: Timer, expiry: Instant) {
        let set = self.expiries[timer as usize];
        self.change(timer, Some(set.map_or(expiry, |set| set.min(expiry))));
    }

    /// Returns when [`poll_expired`](Self::poll_expired) next returns a timer.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Takes one timer that has gone off by `now`; drained to `None` after `now` moved.
    #[must_use]
    pub fn poll_expired(&mut self, now: Instant) -> Option<Timer> {
        let timer = TIMERS
            .into_iter()
            .find(|&timer| self.expiries[timer as usize].is_some_and(|expiry| expiry <= now))?;
        self.clear(timer);
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
        table.set_sooner(Timer::Stall, start + 2 * second);
        table.set_sooner(Timer::Stall, start + 3 * second);
        assert!(table.is_set(Timer::Stall) && !table.is_set(Timer::Drain));
        assert_eq!(table.next(), Some(start + 2 * second));
        assert_eq!(table.poll_expired(start + 2 * second), Some(Timer::Stall));
        assert_eq!(table.next(), None);
    }
}
