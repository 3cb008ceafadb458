//! Events of the device about a queue pair, and why the queue pair died.

use std::sync::Arc;

use ibex_verbs::{AsyncEvent, CompletionFailure, Fault, QueuePairEvent};

use super::{EventOutcome, PairState, QueuePairWire};
use crate::{rdma::RdmaPort, session::EndCause};

impl QueuePairWire {
    /// Returns the device port, and the number of the queue pair there.
    pub(crate) fn place(&self) -> (&Arc<RdmaPort>, u32) {
        (&self.permit.rdma_port, self.number)
    }

    /// Notes the fault of the queue pair's port, or that it has none any more.
    pub(crate) fn doubt_port(&mut self, doubt: Option<Arc<str>>) {
        self.doubt = doubt;
    }

    /// Handles an event of the device about the queue pair.
    pub(super) fn event(&mut self, event: &AsyncEvent) -> EventOutcome {
        if let PairState::Leaving(teardown) = &mut self.state {
            return match teardown.handle_event(event) {
                true => EventOutcome::Something,
                false => EventOutcome::Nothing,
            };
        }
        let AsyncEvent::QueuePair(_, said) = event else {
            return EventOutcome::Nothing;
        };
        match said {
            QueuePairEvent::Fatal => {
                let why = event.to_string();
                EventOutcome::Broke(Box::new(EndCause::DeviceLost { why }))
            }
            QueuePairEvent::InvalidRequest => refused_request("an invalid request", event),
            QueuePairEvent::AccessViolation => {
                let request = "a request for memory that was not granted";
                refused_request(request, event)
            }
            // The queue pair is dead. A completion gives the reason, unless no request was
            // outstanding.
            QueuePairEvent::LastRequestReached => {
                self.died = Some(*event);
                self.drain_guard = Some(self.permit.rdma_port.leaves());
                EventOutcome::Something
            }
            // These events do not matter: the queue pair was connected before, is never drained
            // while it lives, and has one path.
            QueuePairEvent::Established
            | QueuePairEvent::SendQueueDrained
            | QueuePairEvent::PathMigrated
            | QueuePairEvent::PathMigrationFailed => EventOutcome::Nothing,
        }
    }

    /// Notes that the completion queue was found empty after everything in it was taken. The queue
    /// pair is dead if the device said so before.
    pub(super) fn completions_are_empty(&mut self) -> EventOutcome {
        match (&mut self.state, self.died) {
            (PairState::Leaving(teardown), _) => match teardown.handle_empty_poll() {
                true => EventOutcome::Something,
                false => EventOutcome::Nothing,
            },
            (PairState::Live(_), Some(event)) => {
                let cause = EndCause::lost(event.to_string());
                EventOutcome::Broke(Box::new(cause))
            }
            _ => EventOutcome::Nothing,
        }
    }

    /// Returns the meaning of a failed request: the queue pair is dead. The first failure is the
    /// cause, and flushes follow from it; for those this returns `None`.
    ///
    /// A status that blames the peer proves nothing: soft-RoCE reports it for correct messages when
    /// packets are lost. A peer that breaks the protocol does so over other wires too, in frames
    /// that ibex checks.
    pub(super) fn cause_of(&self, failure: &CompletionFailure) -> Option<EndCause> {
        if !self.is_live() {
            return None;
        }
        let fault = failure.fault();
        let why = match fault {
            Fault::Protocol => format!("the device says that the protocol was broken: {failure}"),
            _ => failure.to_string(),
        };
        let doubt = match fault {
            // The device may not have reported yet that its port is down.
            Fault::Link | Fault::Flushed => self.doubt.clone().or_else(|| self.doubt_of_port()),
            Fault::Ours | Fault::Device | Fault::Protocol => None,
        };
        Some(match (fault, doubt) {
            (Fault::Ours | Fault::Device, _) => EndCause::DeviceLost { why },
            (Fault::Link | Fault::Flushed, Some(doubt)) => EndCause::DeviceLost {
                why: format!("{doubt}; {why}"),
            },
            (_, None | Some(_)) => EndCause::lost(why),
        })
    }
}

/// Returns the news that the local device refused a request of the peer.
fn refused_request(request: &str, event: &AsyncEvent) -> EventOutcome {
    let why = format!("the device says that it broke the protocol: it made {request} ({event})");
    EventOutcome::Broke(Box::new(EndCause::lost(why)))
}
