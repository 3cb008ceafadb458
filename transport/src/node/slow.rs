//! The slowest messages of the last minute, and where their time went. Only a node that is inspected
//! keeps them.
#![forbid(unsafe_code)]

use std::{
    cmp::Reverse,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::sync::{Mutex, lock};
use ibex_protocol::format::control::Role;

use crate::session::PeerDescription;

/// A message that took long at one of its ends.
#[derive(Clone, Debug)]
pub struct SlowMessageFacts {
    /// The peer at the other end.
    pub peer: PeerDescription,
    /// The channel's name.
    pub channel: Arc<str>,
    /// The end that this node has.
    pub end: Role,
    /// The message's place in its channel; the first message has 1. [`A_CALL`](Self::A_CALL) for a
    /// call as a whole.
    pub sequence: u64,
    /// The time at which the last known stage was over.
    pub at: Instant,
    /// Where its time went.
    pub stages: MessageStages,
    /// The session and the number of the end in it.
    pub(crate) key: (u64, u32),
}

impl SlowMessageFacts {
    /// The place of a call as a whole, whose channel is the service.
    pub const A_CALL: u64 = 0;
}

/// Where the time of a message went, at one end of its channel and by the clock of that end. A stage
/// that the end does not know is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MessageStages {
    /// At the sending end: the call waited for room in the window.
    pub room: Option<Duration>,
    /// At the sending end, between its publication and its frame: the session waited for the peer's
    /// credit. Accurate to a few milliseconds. Over shared memory there is no credit.
    pub credit: Option<Duration>,
    /// At the sending end, the rest of that time: until an engine's turn had built the frame and
    /// handed it to the wire. Over shared memory there are no frames.
    pub frame: Option<Duration>,
    /// At the sending end: from the frame, or over shared memory from the publication, until a call
    /// that waited for the message to be received or acknowledged had its answer: the way there and
    /// back, and for an acknowledgement the peer's program. At a caller: from the beginning of the
    /// call to its reply.
    pub answer: Option<Duration>,
    /// At the receiving end: from the arrival of the whole message until the program took it. Over
    /// shared memory this end sees no arrival.
    pub queue: Option<Duration>,
    /// At the receiving end: from there until the message was found released, when the program
    /// called again. For a message that was held beyond such a call, until it was last seen held, so
    /// at least so long. At a service: from the arrival of the call until it was answered.
    pub program: Option<Duration>,
}

impl MessageStages {
    /// Returns all stages by their names.
    pub fn named(&self) -> [(&'static str, Option<Duration>); 6] {
        let &Self {
            room,
            credit,
            frame,
            answer,
            queue,
            program,
        } = self;
        [
            ("room", room),
            ("credit", credit),
            ("frame", frame),
            ("answer", answer),
            ("queue", queue),
            ("program", program),
        ]
    }

    /// Returns the sum of the stages that are known.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.named().iter().filter_map(|(_, time)| *time).sum()
    }
}

/// The slowest messages of a node.
///
/// Each sixth of a minute has a list of its own, so that the list of a minute is exact when an
/// earlier sixth is forgotten.
#[derive(Debug, Default)]
pub(crate) struct SlowMessages(Mutex<VecDeque<Sixth>>);

/// The slowest messages of a sixth of a minute.
#[derive(Debug)]
struct Sixth {
    began: Instant,
    messages: Vec<SlowMessageFacts>,
}

impl SlowMessages {
    /// Keeps a message if it is among the slowest.
    pub(crate) fn offer(
        &self,
        message: impl FnOnce() -> SlowMessageFacts,
        total: Duration,
        at: Instant,
    ) {
        let mut sixths = lock(&self.0);
        let is_over = |sixth: &Sixth| at.saturating_duration_since(sixth.began) >= SIXTH;
        if sixths.back().is_none_or(is_over) {
            while sixths.len() > SIXTHS {
                sixths.pop_front();
            }
            sixths.push_back(Sixth {
                began: at,
                messages: Vec::new(),
            });
        }
        let Some(Sixth { messages, .. }) = sixths.back_mut() else {
            return;
        };
        if messages.len() < MOST {
            messages.push(message());
            return;
        }
        let least = messages.iter_mut().min_by_key(|kept| kept.stages.total());
        if let Some(least) = least
            && least.stages.total() < total
        {
            *least = message();
        }
    }

    /// Adds the answer to a message that is kept. Returns whether it is.
    pub(crate) fn answer(
        &self,
        key: (u64, u32),
        sequence: u64,
        answer: Duration,
        at: Instant,
    ) -> bool {
        let mut sixths = lock(&self.0);
        let mut kept = sixths.iter_mut().flat_map(|sixth| &mut sixth.messages);
        let found =
            kept.find(|kept| (kept.key, kept.sequence, kept.end) == (key, sequence, Role::Sender));
        if let Some(found) = found {
            found.stages.answer = Some(answer);
            found.at = at;
            return true;
        }
        false
    }

    /// Returns the slowest messages of the last minute, the slowest first.
    pub(crate) fn of_last_minute(&self, now: Instant) -> Vec<SlowMessageFacts> {
        let sixths = lock(&self.0);
        let kept = sixths.iter().flat_map(|sixth| &sixth.messages);
        let is_recent = |kept: &&SlowMessageFacts| now.saturating_duration_since(kept.at) < MINUTE;
        let mut slowest: Vec<_> = kept.filter(is_recent).cloned().collect();
        drop(sixths);
        slowest.sort_by_key(|kept| Reverse(kept.stages.total()));
        slowest.truncate(MOST);
        slowest
    }
}

/// The number of messages that are kept.
const MOST: usize = 32;
const MINUTE: Duration = Duration::from_secs(60);
const SIXTH: Duration = Duration::from_secs(10);
/// The lists before the present one that have messages of the last minute.
const SIXTHS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Fabric, PeerNames};

    fn message(sequence: u64, room: Duration, at: Instant) -> SlowMessageFacts {
        SlowMessageFacts {
            peer: PeerDescription {
                address: "127.0.0.1:7000".parse().expect("an address"),
                identity: [1; 16],
                incarnation: 1,
                began: at,
                pid: None,
                fabric: Fabric::Tcp,
                reason: String::new(),
                names: PeerNames::default(),
                known_to: None,
            },
            channel: "wal".into(),
            end: Role::Sender,
            sequence,
            at,
            stages: MessageStages {
                room: Some(room),
                ..MessageStages::default()
            },
            key: (1, 2),
        }
    }

    fn sequences(slow: &SlowMessages, now: Instant) -> Vec<u64> {
        let kept = slow.of_last_minute(now).into_iter();
        kept.map(|kept| kept.sequence).collect()
    }

    #[test]
    fn the_slowest_of_a_minute_are_kept_and_no_more() {
        let slow = SlowMessages::default();
        let start = Instant::now();
        // One each second; the later, the slower, but for the first, which is the slowest.
        for second in 0..120 {
            let at = start + Duration::from_secs(second);
            let room = Duration::from_micros(if second == 0 { 1000 } else { second });
            slow.offer(|| message(second, room, at), room, at);
            let kept = sequences(&slow, at);
            assert!(kept.len() <= MOST);
            assert_eq!(kept.contains(&0), second < 60, "at {second} s");
        }
        let last = start + Duration::from_secs(119);
        assert_eq!(sequences(&slow, last), (88..120).rev().collect::<Vec<_>>());
        assert_eq!(lock(&slow.0).len(), SIXTHS + 1);
        assert_eq!(sequences(&slow, last + MINUTE), [0; 0]);
    }

    #[test]
    fn within_a_sixth_a_faster_message_makes_way() {
        let slow = SlowMessages::default();
        let at = Instant::now();
        for sequence in 1..=100 {
            let room = Duration::from_micros(sequence);
            slow.offer(|| message(sequence, room, at), room, at);
        }
        assert_eq!(sequences(&slow, at), (69..=100).rev().collect::<Vec<_>>());
        assert!(!slow.answer((1, 2), 68, SIXTH, at), "it made way");
        assert!(!slow.answer((1, 3), 69, SIXTH, at), "another end");
        assert!(slow.answer((1, 2), 69, SIXTH, at));
        let slowest = &slow.of_last_minute(at)[0];
        assert_eq!(slowest.sequence, 69);
        assert_eq!(slowest.stages.total(), SIXTH + Duration::from_micros(69));
    }
}
