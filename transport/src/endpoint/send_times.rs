//! The times of a sending end's messages, at a node that is inspected: when there was no room, when
//! each was published, and when it was in a frame.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ibex_base::sync::{Mutex, lock};

use super::{send_end::SendEnd, send_path::FrameWait};
use crate::{
    clock,
    node::{MessageStages, SlowMessageFacts},
};

/// The times of messages that are not in a frame, or not answered.
#[derive(Debug, Default)]
pub(crate) struct SendTimes(Mutex<DepartureTimes>);

#[derive(Debug, Default)]
struct DepartureTimes {
    /// The time for which the next message has waited for room.
    room: Option<Duration>,
    /// Messages that are not in a frame, as far as their time is kept.
    published: VecDeque<Published>,
    /// The last message in a frame.
    framed: u64,
    /// Messages that are in frames and may be answered.
    out: VecDeque<Out>,
}

#[derive(Clone, Copy, Debug)]
struct Published {
    sequence: u64,
    at: Instant,
    room: Option<Duration>,
    /// The session's waits for credit until then.
    credit_stalled: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Out {
    sequence: u64,
    at: Instant,
    stages: MessageStages,
}

impl SendEnd {
    /// Notes for how long the message that is published next has waited for room.
    pub(crate) fn waited_for_room(&self, since: Instant) {
        if let Some(times) = &self.times {
            let waited = clock::now().saturating_duration_since(since);
            *lock(&times.0).room.get_or_insert_default() += waited;
        }
    }

    /// Notes that the message that has waited is not published.
    pub(crate) fn gave_up_waiting(&self) {
        if let Some(times) = &self.times {
            lock(&times.0).room = None;
        }
    }

    /// Notes that a message was just published.
    pub(crate) fn was_published(&self, times: &SendTimes, sequence: u64) {
        let published = Published {
            sequence,
            at: clock::now(),
            room: None,
            credit_stalled: self.session.counters.credit_stalled(),
        };
        let mut times = lock(&times.0);
        let published = Published {
            room: times.room.take(),
            ..published
        };
        match self.path.frame_wait(sequence, times.framed) {
            FrameWait::Lasts if times.published.len() < MOST => {
                times.published.push_back(published);
            }
            FrameWait::Lasts => {}
            wait => self.went(&mut times, published, wait),
        }
    }

    /// Notes that the messages up to `last` are in a frame, which was handed to the wire.
    #[cold]
    pub(crate) fn was_framed(&self, last: u64) {
        let Some(times) = &self.times else {
            return;
        };
        let (now, stalled) = (clock::now(), self.session.counters.credit_stalled());
        let mut times = lock(&times.0);
        times.framed = times.framed.max(last);
        while let Some(published) = times.published.front().copied()
            && published.sequence <= last
        {
            times.published.pop_front();
            let waited = now.saturating_duration_since(published.at);
            let credit = stalled.saturating_sub(published.credit_stalled).min(waited);
            let rest = waited - credit;
            self.went(&mut times, published, FrameWait::Over { credit, rest });
        }
    }

    /// Notes that a call that waited for a message has the peer's answer.
    #[cold]
    pub(crate) fn was_answered(&self, sequence: u64) {
        let (Some(times), Some(slow)) = (&self.times, &self.session.node.slow) else {
            return;
        };
        let mut times = lock(&times.0);
        let Ok(index) = times
            .out
            .binary_search_by_key(&sequence, |out| out.sequence)
        else {
            return;
        };
        let mut out = times.out[index];
        times.out.drain(..=index);
        drop(times);
        let now = clock::now();
        let answer = now.saturating_duration_since(out.at);
        if slow.answer((self.session.id, self.id), sequence, answer, now) {
            return;
        }
        out.at = now;
        out.stages.answer = Some(answer);
        self.offer(out);
    }

    fn went(&self, times: &mut DepartureTimes, published: Published, wait: FrameWait) {
        let (credit, frame) = match wait {
            FrameWait::Over { credit, rest } => (Some(credit), Some(rest)),
            FrameWait::NoFrame | FrameWait::Lasts => (None, None),
        };
        let out = Out {
            sequence: published.sequence,
            at: clock::now(),
            stages: MessageStages {
                room: published.room,
                credit,
                frame,
                ..MessageStages::default()
            },
        };
        if times.out.len() == MOST {
            times.out.pop_front();
        }
        times.out.push_back(out);
        self.offer(out);
    }

    fn offer(&self, out: Out) {
        let Some(slow) = &self.session.node.slow else {
            return;
        };
        let message = || SlowMessageFacts {
            peer: self.session.peer().clone(),
            channel: self.name.clone(),
            end: self.role,
            sequence: out.sequence,
            at: out.at,
            stages: out.stages,
            key: (self.session.id, self.id),
        };
        slow.offer(message, out.stages.total(), out.at);
    }
}

/// The most messages of an end whose times are kept in each state. Others have none.
const MOST: usize = 1024;
