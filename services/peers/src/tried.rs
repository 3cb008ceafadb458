//! The endpoints that a call has tried.

use std::time::{Duration, Instant};

use ibex_core::{Peer, extend::BackOff};

/// The sessions in which a call was tried, so that it is tried elsewhere first. When all were
/// tried, there is a pause, and a next round.
#[derive(Default)]
pub struct Tried {
    /// The sessions of this round.
    now: Vec<Peer>,
    /// The sessions that cannot serve the call.
    excluded: Vec<Peer>,
    pause_until: Option<Instant>,
    /// The rounds that are over.
    rounds: u32,
}

impl Tried {
    /// Notes an attempt. The session is tried again in the next round.
    pub fn add(&mut self, peer: &Peer) {
        self.now.push(peer.clone());
        self.pause_until = None;
    }

    /// Notes a session that is not tried again.
    pub fn exclude(&mut self, peer: &Peer) {
        self.excluded.push(peer.clone());
    }

    /// Returns whether the call was tried in no session twice.
    pub fn is_first_round(&self) -> bool {
        self.rounds == 0
    }

    pub(super) fn has(&self, peer: &Peer) -> bool {
        self.now.iter().any(|tried| tried.is_same_session(peer))
    }

    pub(super) fn excludes(&self, peer: &Peer) -> bool {
        self.excluded
            .iter()
            .any(|tried| tried.is_same_session(peer))
    }

    /// The time until which a call for which all were tried waits.
    pub(super) fn pause_until(&self) -> Option<Instant> {
        self.pause_until
    }

    /// Ends a pause whose time has come, so that all may be tried again.
    pub(super) fn end_pause(&mut self, now: Instant) {
        if self.pause_until.is_some_and(|until| until <= now) {
            self.pause_until = None;
            self.now.clear();
        }
    }

    /// Begins the pause after a round. Returns false if it has begun before.
    pub(super) fn begin_pause(&mut self, now: Instant) -> bool {
        let begins = self.pause_until.is_none();
        if begins {
            self.rounds += 1;
            self.pause_until = Some(now + BACK_OFF.pause(self.rounds));
        }
        begins
    }
}

/// The pauses of a call after all endpoints have refused it, and those in which an endpoint that
/// has refused is avoided.
pub(super) const BACK_OFF: BackOff =
    BackOff::new(Duration::from_millis(10), Duration::from_secs(1));

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pause_ends_in_its_time_and_begins_once_in_a_round() {
        let (mut tried, now) = (Tried::default(), Instant::now());
        assert!(tried.begin_pause(now));
        assert!(!tried.begin_pause(now));
        tried.end_pause(now);
        let until = tried.pause_until().expect("its time has not come");
        tried.end_pause(until);
        assert_eq!(tried.pause_until(), None, "none waits for the past");
        assert!(tried.begin_pause(until + Duration::from_secs(1)));
        assert!(!tried.is_first_round());
    }
}
