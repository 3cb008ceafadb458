//! The endpoints that a call has tried.

use std::time::Instant;

use super::endpoints::{BACK_OFF, is_same};
use crate::Peer;

/// The sessions in which a call was tried, so that it is tried elsewhere first. When all were
/// tried, there is a pause, and a next round.
#[derive(Default)]
pub(crate) struct Tried {
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
    pub(crate) fn add(&mut self, peer: &Peer) {
        self.now.push(peer.clone());
        self.pause_until = None;
    }

    /// Notes a session that is not tried again.
    pub(crate) fn exclude(&mut self, peer: &Peer) {
        self.excluded.push(peer.clone());
    }

    /// Returns whether the call was tried in no session twice.
    pub(crate) fn is_first_round(&self) -> bool {
        self.rounds == 0
    }

    pub(super) fn has(&self, peer: &Peer) -> bool {
        self.now.iter().any(|tried| is_same(tried, peer))
    }

    pub(super) fn excludes(&self, peer: &Peer) -> bool {
        self.excluded.iter().any(|tried| is_same(tried, peer))
    }

    /// The time until which a call for which all were tried waits.
    pub(super) fn pause_until(&self) -> Option<Instant> {
        self.pause_until
    }

    /// Begins the pause after a round, or ends it when its time has come. `None` if it is over; true
    /// if it has begun now.
    pub(super) fn pause(&mut self, now: Instant) -> Option<bool> {
        match self.pause_until {
            Some(until) if now < until => Some(false),
            Some(_) => {
                self.pause_until = None;
                self.now.clear();
                None
            }
            None => {
                self.rounds += 1;
                self.pause_until = Some(now + BACK_OFF.pause(self.rounds));
                Some(true)
            }
        }
    }
}
