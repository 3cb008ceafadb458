//! The times of a receiving end's messages, at a node that is inspected: when each arrived, when the
//! program took it, and when it was found released.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ibex_base::sync::{Mutex, lock};

use super::receive_end::ReceiveEnd;
use crate::{
    clock,
    node::{MessageStages, SlowMessageFacts},
};

/// The times of messages that were not taken, or not released.
#[derive(Debug, Default)]
pub(crate) struct ReceiveTimes(Mutex<ArrivalTimes>);

#[derive(Debug, Default)]
struct ArrivalTimes {
    /// Frames whose messages were not all taken: the first and the last message.
    arrived: VecDeque<(u64, u64, Instant)>,
    /// Messages with memory of their own, which arrive behind their announcement.
    large: VecDeque<(u64, Instant)>,
    /// Messages that the program holds.
    taken: VecDeque<Taken>,
    /// The time at which messages were last found held.
    looked_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    sequence: u64,
    at: Instant,
    queue: Option<Duration>,
}

impl ReceiveTimes {
    /// Notes that a frame with these messages has arrived.
    #[cold]
    pub(crate) fn arrived(&self, first: u64, last: u64) {
        let mut times = lock(&self.0);
        if times.arrived.len() < MOST {
            times.arrived.push_back((first, last, clock::now()));
        }
    }

    /// Notes that a message with memory of its own has arrived whole.
    pub(crate) fn large_arrived(&self, sequence: u64) {
        let mut times = lock(&self.0);
        if times.large.len() < MOST {
            times.large.push_back((sequence, clock::now()));
        }
    }

    /// Notes that the program took a message.
    pub(crate) fn taken(&self, sequence: u64) {
        let now = clock::now();
        let mut times = lock(&self.0);
        while times
            .arrived
            .front()
            .is_some_and(|frame| frame.1 < sequence)
        {
            times.arrived.pop_front();
        }
        let of_frame = times.arrived.front().filter(|frame| frame.0 <= sequence);
        let of_frame = of_frame.map(|(_, _, at)| *at);
        let large = times.large.iter().position(|large| large.0 == sequence);
        let of_large = large.and_then(|index| times.large.remove(index));
        let arrived = of_large.map(|(_, at)| at).or(of_frame);
        let taken = Taken {
            sequence,
            at: now,
            queue: arrived.map(|at| now.saturating_duration_since(at)),
        };
        if times.taken.len() < MOST {
            times.taken.push_back(taken);
        }
    }
}

impl ReceiveEnd {
    /// Notes which messages the program has released. Its handle calls this in each call that
    /// receives.
    pub(crate) fn check_released(&self) {
        let (Some(times), Some(slow)) = (&self.times, &self.session.node.slow) else {
            return;
        };
        let (now, released) = (clock::now(), self.prefix.prefix().released);
        let mut times = lock(&times.0);
        while let Some(taken) = times.taken.front().copied()
            && taken.sequence <= released
        {
            times.taken.pop_front();
            let held = times.looked_at.filter(|looked_at| *looked_at > taken.at);
            let until = held.unwrap_or(now);
            let stages = MessageStages {
                queue: taken.queue,
                program: Some(until.saturating_duration_since(taken.at)),
                ..MessageStages::default()
            };
            let message = || SlowMessageFacts {
                peer: self.session.peer().clone(),
                channel: self.name.clone(),
                end: self.role,
                sequence: taken.sequence,
                at: now,
                stages,
                key: (self.session.id, self.id),
            };
            slow.offer(message, stages.total(), now);
        }
        times.looked_at = Some(now);
    }
}

/// The most messages and frames of an end whose times are kept in each state. Others have none.
const MOST: usize = 1024;
