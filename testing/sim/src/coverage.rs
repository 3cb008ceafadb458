//! Coverage: the pairs of event and state that occurred. A pair that never occurs is never checked.
#![forbid(unsafe_code)]

use std::ops::BitOrAssign;

use ibex_protocol::session::SessionEvent;

use super::node::{Life, Node};

/// Pairs of a state and an event of the session's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pairs: [u64; PAIRS.div_ceil(64)],
}

impl Coverage {
    /// Returns the number of pairs that occurred.
    #[must_use]
    pub fn pairs(&self) -> u32 {
        self.pairs.iter().map(|pairs| pairs.count_ones()).sum()
    }

    /// Notes that an event met a state.
    pub(super) fn note(&mut self, pair: usize) {
        self.pairs[pair / 64] |= 1 << (pair % 64);
    }
}

impl BitOrAssign for Coverage {
    fn bitor_assign(&mut self, other: Self) {
        for (pairs, more) in self.pairs.iter_mut().zip(other.pairs) {
            *pairs |= more;
        }
    }
}

/// Returns the number of the pair that an event makes with the state of its subject (an end, or the
/// session) and of the wires.
pub(super) fn pair_of(node: &Node, event: &SessionEvent) -> usize {
    let (event, end) = match *event {
        SessionEvent::PeerOpened { .. } => (0, None),
        SessionEvent::Goodbye { .. } => (1, None),
        SessionEvent::Opened { end, .. } => (2, Some(end)),
        SessionEvent::Mismatched { end, .. } => (3, Some(end)),
        SessionEvent::Counted { end, .. } => (4, Some(end)),
        SessionEvent::Asked { end } => (5, Some(end)),
        SessionEvent::Notified { end, .. } => (6, Some(end)),
        SessionEvent::PeerClosed { end, .. } => (7, Some(end)),
        SessionEvent::LargeAnnounced { end, .. } => (8, Some(end)),
        SessionEvent::Forgotten { end } => (9, Some(end)),
        SessionEvent::EagerBlockReturned { .. } => (10, None),
        SessionEvent::Replay { end, .. } => (11, Some(end)),
        SessionEvent::Resumed { .. } => (12, None),
        SessionEvent::Abandoned => (13, None),
        SessionEvent::Damaged { .. } => (14, None),
        SessionEvent::Draining { .. } => (15, None),
    };
    let sender = end.and_then(|end| node.senders.get(&end));
    let receiver = end.and_then(|end| node.receivers.get(&end));
    let of_end = |is_closed, is_over, is_answered| match (is_closed, is_over, is_answered) {
        (true, ..) => 0,
        (_, true, _) => 1,
        (.., true) => 2,
        _ => 3,
    };
    let state = match (sender, receiver) {
        (Some(end), _) => of_end(end.is_closed, end.is_over, end.is_answered),
        (_, Some(end)) => 4 + of_end(end.is_closed, end.is_over, end.is_answered),
        _ => 8 + usize::from(node.life == Life::Ending),
    };
    (node.stage as usize * STATES + state) * EVENTS + event
}

/// The number of events.
const EVENTS: usize = 16;
/// States of a sending end, of a receiving end, and of a session.
const STATES: usize = 4 + 4 + 2;
/// States of the wires.
const STAGES: usize = 3;
const PAIRS: usize = STAGES * STATES * EVENTS;
