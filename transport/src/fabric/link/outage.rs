//! The time that a session is without wires, and what is done in it to get others.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    time::{Duration, Instant},
};

use super::peer_process::PeerProcess;
use crate::channel::EndCause;

/// What is known of a break of the wires, until both ends go on over others.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) cause: EndCause,
    /// Whether listeners to events heard of it.
    pub(super) is_told: bool,
    /// To dial the peer, which were made or are about to be.
    pub(super) attempts: u32,
    /// What the last of them came to.
    pub(super) failure: Option<String>,
    pub(super) process: PeerProcess,
}

impl Outage {
    pub(super) fn new(since: Instant, cause: EndCause, process: PeerProcess) -> Self {
        Self {
            since,
            cause,
            is_told: false,
            attempts: 0,
            failure: None,
            process,
        }
    }

    /// What the last attempt came to, as the end of a sentence.
    pub(super) fn last_failure(&self) -> String {
        let failure = self.failure.as_ref();
        failure.map_or_else(String::new, |failure| {
            format!("; the last attempt: {failure}")
        })
    }

    /// The pause before the next attempt: none before the first.
    pub(super) fn pause(&self) -> Duration {
        self.attempts
            .checked_sub(1)
            .map_or(Duration::ZERO, back_off)
    }
}

/// The pause behind an attempt: twice the one before, by half more or less at random, so that
/// sessions that broke together do not all come back in one moment.
fn back_off(attempts: u32) -> Duration {
    let pause = FIRST_PAUSE
        .saturating_mul(1 << attempts.min(16))
        .min(LONGEST_PAUSE);
    let random = RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64((random % 1024) as f64 / 1024.0)
}

/// Pauses between attempts to dial.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut outage = Outage::new(Instant::now(), EndCause::Goodbye, PeerProcess::Unknown);
        assert_eq!(outage.pause(), Duration::ZERO);
        for before in 0..40 {
            outage.attempts = before + 1;
            let whole = FIRST_PAUSE
                .saturating_mul(1 << before.min(16))
                .min(LONGEST_PAUSE);
            let pause = outage.pause();
            assert!(
                whole / 2 <= pause && pause <= whole * 3 / 2,
                "{before}: {pause:?}"
            );
        }
    }
}
