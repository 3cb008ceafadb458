//! An outage: the time for which a session has no wire, and the attempts to get another.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    time::{Duration, Instant},
};

use ibex_protocol::session::Progress;

use super::peer_process::PeerProcess;
use crate::session::EndCause;

/// The state of a break of the wire, until both ends continue over another.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) cause: EndCause,
    /// Listeners to events were told of the outage.
    pub(super) is_told: bool,
    /// Attempts to dial the peer, the next one included.
    pub(super) attempts: u32,
    /// The failure of the last attempt.
    pub(super) failure: Option<String>,
    pub(super) process: PeerProcess,
    /// Consecutive breaks, this one included, between which nothing got through.
    pub(super) breaks: u32,
    /// Time of the first of those breaks.
    pub(super) stuck_since: Instant,
    /// The progress of the session before the break.
    progress: Progress,
    /// Data in flight is known not to have got through, or earlier breaks preceded this one and
    /// nothing got through between them.
    pub(super) is_stuck: bool,
    /// The peer has reported that it found damage.
    pub(super) heard_of_damage: bool,
}

/// An outage that is over for now: nothing may get through over the new wires either.
#[derive(Debug)]
pub(super) struct Past {
    over_at: Instant,
    attempts: u32,
    breaks: u32,
    stuck_since: Instant,
    progress: Progress,
}

impl Outage {
    /// Begins an outage of a session with this `progress`.
    pub(super) fn new(
        since: Instant,
        cause: EndCause,
        process: PeerProcess,
        progress: Progress,
    ) -> Self {
        Self {
            since,
            cause,
            is_told: false,
            attempts: 0,
            failure: None,
            process,
            breaks: 1,
            stuck_since: since,
            progress,
            is_stuck: false,
            heard_of_damage: false,
        }
    }

    /// Continues an earlier outage, if nothing got through over the wires in between. Wires that
    /// held for `timeout` do not count as failed.
    pub(super) fn continue_from(&mut self, past: &Past, timeout: Duration) -> bool {
        let held = self.since.duration_since(past.over_at);
        let continues = past.progress == self.progress && held < timeout;
        if continues {
            self.attempts = past.attempts;
            self.breaks = past.breaks.saturating_add(1);
            self.stuck_since = past.stuck_since;
            self.is_stuck = true;
        }
        continues
    }

    /// Returns the part to keep when the session continues: `None`, unless some data of the session
    /// did not get through.
    pub(super) fn past(&self, over_at: Instant) -> Option<Past> {
        self.is_stuck.then_some(Past {
            over_at,
            attempts: self.attempts,
            breaks: self.breaks,
            stuck_since: self.stuck_since,
            progress: self.progress,
        })
    }

    /// Adds details to the cause.
    pub(super) fn add_to_cause(&mut self, more: &str) {
        if let EndCause::PeerGone { why, .. } = &mut self.cause {
            why.push_str(more);
        }
    }

    /// Returns the failure of the last attempt, as the end of a sentence.
    pub(super) fn last_failure(&self) -> String {
        let failure = self.failure.as_ref();
        failure.map_or_else(String::new, |failure| {
            format!("; the last attempt: {failure}")
        })
    }

    /// Returns the pause before the next attempt. There is none before the first.
    pub(super) fn pause(&self) -> Duration {
        self.attempts
            .checked_sub(1)
            .map_or(Duration::ZERO, back_off)
    }
}

/// Returns the pause after an attempt: twice the previous one, varied at random by up to a half, so
/// that sessions that broke together do not all come back at the same moment.
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
    use ibex_protocol::{
        format::{
            control::Control,
            frame::{FrameHeader, FrameKind, HEADER_BYTES},
        },
        framing::Carriage,
        session::{Session, SessionConfig},
    };

    fn session() -> Session {
        Session::new(SessionConfig {
            carriage: Carriage::Stream,
            dialed: true,
            our_credit: 1 << 20,
            peer_credit: 1 << 20,
            max_channels: 4,
            data_in_band: true,
            writes: false,
            immediate: false,
            resumes: true,
        })
    }

    fn outage(since: Instant, session: &Session) -> Outage {
        let cause = EndCause::lost("it closed the connection");
        Outage::new(since, cause, PeerProcess::Unknown, session.progress())
    }

    /// Returns the outage that follows `before`, whose new wires held for `held`, and whether it
    /// continues `before`.
    fn next(before: &Outage, session: &Session, held: Duration) -> (Outage, bool) {
        let over_at = before.since + Duration::from_millis(1);
        let mut next = outage(over_at + held, session);
        let past = before.past(over_at);
        let continues = past.is_some_and(|past| next.continue_from(&past, TIMEOUT));
        (next, continues)
    }

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn where_nothing_gets_through_pauses_grow_over_many_connections() {
        let session = session();
        let mut stuck = outage(Instant::now(), &session);
        stuck.is_stuck = true;
        let first = stuck.since;
        for breaks in 1..40 {
            assert_eq!((stuck.breaks, stuck.stuck_since), (breaks, first));
            assert_eq!(stuck.pause().is_zero(), breaks == 1);
            // The session dials, and gets through the handshake at once.
            stuck.attempts += 1;
            let (next, continues) = next(&stuck, &session, Duration::from_millis(1));
            assert!(continues && next.is_stuck);
            stuck = next;
        }
        assert!(stuck.pause() >= LONGEST_PAUSE / 2);
    }

    #[test]
    fn a_frame_that_gets_through_makes_the_next_outage_a_new_one() {
        let mut session = session();
        let mut before = outage(Instant::now(), &session);
        before.is_stuck = true;
        before.attempts = 7;
        let mut body = Vec::new();
        Control::Goodbye.encode(&mut body);
        let header = FrameHeader {
            length: (HEADER_BYTES + body.len()) as u32,
            channel: 0,
            kind: FrameKind::Control,
            extension: false,
            pad: 0,
            sequence: 0,
        };
        let mut frame = Vec::new();
        header.append_to(None, &mut frame);
        frame.append(&mut body);
        session.handle_frame(&header, &frame, 0).unwrap();
        let (next, continues) = next(&before, &session, Duration::ZERO);
        assert!(!continues && !next.is_stuck);
        assert_eq!((next.attempts, next.breaks), (0, 1));
    }

    /// A resting session whose connections are ended by something outside of ibex.
    #[test]
    fn breaks_of_a_session_with_nothing_to_say_are_ordinary_ones() {
        let session = session();
        let before = outage(Instant::now(), &session);
        assert!(!next(&before, &session, Duration::ZERO).1);
        let mut before = before;
        before.is_stuck = true;
        assert!(next(&before, &session, TIMEOUT - Duration::from_millis(1)).1);
        assert!(!next(&before, &session, TIMEOUT).1);
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut outage = outage(Instant::now(), &session());
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
