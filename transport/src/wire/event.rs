//! Events of a wire that does not come over its socket.

use std::{sync::Arc, time::Instant};

use ibex_verbs::{AsyncEvent, WorkCompletion};

use super::FrameRefusal;
use crate::{
    rdma::{RdmaPort, SharedReceives},
    session::EndCause,
};

/// Events of the device that carries a wire's frames.
#[derive(Debug)]
pub(crate) enum WireEvent<'a> {
    /// A request has completed. If the wire shares a receive queue, the queue's buffers come with
    /// the completion.
    Completed(&'a WorkCompletion, Option<&'a mut SharedReceives>),
    /// The device reported an event about the wire.
    Said(&'a AsyncEvent),
    /// The completion queue was found empty after everything in it was taken.
    Empty,
    /// The time for the last requests of failed rails may be over.
    RailsOverdue(Instant),
    /// Events of the rail whose queue pair has this number on this port.
    OfRail(&'a Arc<RdmaPort>, u32, RailEvent<'a>),
}

/// Events of a rail.
#[derive(Debug)]
pub(crate) enum RailEvent<'a> {
    /// A request has completed.
    Completed(&'a WorkCompletion),
    /// The device reported an event about the queue pair.
    Said(&'a AsyncEvent),
    /// The device has failed, and no request will complete any more.
    Lost(&'a str),
}

impl WireEvent<'_> {
    /// Drops an event of a wire that is gone. A buffer that comes with it may be used again.
    #[cold]
    pub(super) fn turn_away(self) -> EventOutcome {
        if let Self::Completed(completion, Some(shared)) = self {
            let _ = shared.complete(completion.id());
        }
        EventOutcome::Stray
    }
}

/// The consequence of an event of a wire.
#[derive(Debug)]
pub(crate) enum EventOutcome {
    /// The event has no consequence.
    Nothing,
    /// Output or a credit report may follow.
    Something,
    /// The event concerns nothing that the wire has.
    Stray,
    /// A frame was refused.
    Refused(Box<FrameRefusal>),
    /// The wire has broken.
    Broke(Box<EndCause>),
}

/// Error for an event that concerns nothing of the session.
#[derive(Debug)]
pub(crate) struct Stray;
