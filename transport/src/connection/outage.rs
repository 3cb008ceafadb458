//! An outage: the time for which a session has no wire, and the attempts to get another.

use std::time::{Duration, Instant};

use ibex_base::BackOff;
use ibex_protocol::session::Progress;

use super::peer_process::PeerProcess;
use crate::session::{EndCause, Suspension};

/// The state of a break of the wire, until both ends continue over another.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) cause: EndCause,
    /// Listeners to events were notified of the outage.
    pub(super) is_notified: bool,
    /// Attempts to dial the peer, the next one included.
    pub(super) attempts: u32,
    /// The failure of the last attempt.
    pub(super) failure: Option<String>,
    /// The first of the latest attempts in a row that the peer's host has refused.
    refused_since: Option<Instant>,
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
    pub(super) received_damage: bool,
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
            is_notified: false,
            attempts: 0,
            failure: None,
            refused_since: None,
            process,
            breaks: 1,
            stuck_since: since,
            progress,
            is_stuck: false,
            received_damage: false,
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

    /// Notes that an attempt failed. Returns for how long the peer's host has refused every attempt
    /// since, if it refused this one.
    pub(super) fn attempt_failed(
        &mut self,
        why: String,
        is_refusal: bool,
        now: Instant,
    ) -> Option<Duration> {
        self.failure = Some(why);
        let since = is_refusal.then(|| self.refused_since.unwrap_or(now));
        self.refused_since = since;
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Returns the account of the outage for all who report what it holds up.
    pub(super) fn account(
        &self,
        peer: String,
        dials: bool,
        session_timeout: Duration,
    ) -> Suspension {
        Suspension {
            peer,
            since: self.since,
            cause: self.cause.clone(),
            dials,
            // The next attempt is counted already.
            attempts: self.attempts.saturating_sub(1),
            last_failure: self.failure.clone(),
            until: self.stuck_since.checked_add(session_timeout),
            is_silence: false,
        }
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
        BACK_OFF.pause(self.attempts)
    }
}

/// Pauses between attempts to dial.
const BACK_OFF: BackOff = BackOff::new(Duration::from_millis(5), Duration::from_secs(1));

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_protocol::{
        format::{
            control::Control,
            frame::{FrameHeader, FrameKind, HEADER_BYTES},
        },
        session::{DataPath, Session, SessionConfig, WireTerms},
    };

    fn session() -> Session {
        Session::new(SessionConfig {
            wires: WireTerms {
                our_credit: 1 << 20,
                peer_credit: 1 << 20,
                ..WireTerms::STREAM
            },
            dialed: true,
            max_channels: 4,
            data_path: DataPath::Framed,
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
        assert!(stuck.pause() >= Duration::from_millis(500));
    }

    #[test]
    fn a_frame_that_gets_through_makes_the_next_outage_a_new_one() {
        let mut session = session();
        let mut before = outage(Instant::now(), &session);
        before.is_stuck = true;
        before.attempts = 7;
        let mut body = Vec::new();
        Control::Goodbye { reason: None }.encode(&mut body);
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
    fn refusals_count_from_the_first_in_a_row() {
        let mut outage = outage(Instant::now(), &session());
        let start = outage.since;
        let at = |seconds| start + Duration::from_secs(seconds);
        let times = [at(1), at(2), at(3), at(4), at(9)];
        let mut fails = |is_refusal, now| outage.attempt_failed(String::new(), is_refusal, now);
        assert_eq!(fails(true, times[0]), Some(Duration::ZERO));
        assert_eq!(fails(true, times[1]), Some(Duration::from_secs(1)));
        assert_eq!(fails(false, times[2]), None, "something else answers");
        assert_eq!(fails(true, times[3]), Some(Duration::ZERO));
        assert_eq!(fails(true, times[4]), Some(Duration::from_secs(5)));
    }
}
