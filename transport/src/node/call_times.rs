//! How long calls take: for the histograms of a node that keeps them, and for the slowest messages of
//! a node that is inspected.
#![forbid(unsafe_code)]

use std::{sync::Arc, time::Instant};

use ibex_protocol::format::control::Role;

use super::{Measured, MessageStages, NodeState, SessionShared, SlowMessageFacts};
use crate::{clock, histogram::Recorder};

/// Takes the times of the calls of one service, at its caller or at its handler.
#[derive(Debug)]
pub struct CallTimes {
    service: Arc<str>,
    /// The end that this node has.
    end: Role,
    /// The histogram, if the node keeps histograms.
    recorder: Option<Arc<Recorder>>,
}

impl NodeState {
    /// Returns what takes the times of the calls of a service. `None` if nobody wants to know them.
    #[must_use]
    pub fn call_times(&self, end: Role, service: &str) -> Option<Arc<CallTimes>> {
        let recorder = self.recorder(measured(end), service);
        if recorder.is_none() && self.slow.is_none() {
            return None;
        }
        Some(Arc::new(CallTimes {
            service: service.into(),
            end,
            recorder,
        }))
    }
}

/// Returns what the end that a node has of a call measures.
fn measured(end: Role) -> Measured {
    match end {
        Role::Sender => Measured::Calls,
        Role::Receiver => Measured::Handling,
    }
}

/// A call whose time is taken. Dropping it notes nothing.
#[derive(Debug)]
pub struct CallTime {
    times: Arc<CallTimes>,
    since: Instant,
}

impl CallTime {
    /// Starts, if somebody wants to know the time.
    #[must_use]
    pub fn start(times: Option<&Arc<CallTimes>>) -> Option<Self> {
        times.map(|times| Self {
            times: times.clone(),
            since: clock::now(),
        })
    }

    /// Notes that the call with a peer of this session is over, and the kind of its error if it failed.
    pub fn note(&self, session: &SessionShared, error: Option<String>) {
        let Self { times, since } = self;
        let now = clock::now();
        let took = now.saturating_duration_since(*since);
        match (&times.recorder, error) {
            (Some(recorder), None) => recorder.record(took),
            (Some(_), Some(error)) => {
                let of = (measured(times.end), &*times.service);
                session.node.record_failure(of, &error, took);
            }
            (None, _) => {}
        }
        let Some(slow) = &session.node.slow else {
            return;
        };
        let mut stages = MessageStages::default();
        match times.end {
            Role::Sender => stages.answer = Some(took),
            Role::Receiver => stages.program = Some(took),
        }
        let message = || SlowMessageFacts {
            peer: session.peer().clone(),
            channel: times.service.clone(),
            end: times.end,
            sequence: SlowMessageFacts::A_CALL,
            at: now,
            stages,
            key: (session.id, 0),
        };
        slow.offer(message, took, now);
    }
}
