//! News of a wire that does not come over its socket.

use ibex_verbs::{AsyncEvent, WorkCompletion};

use super::Fault;
use crate::{rdma::SharedReceives, session::EndCause};

/// News of the device that carries a wire's frames.
#[derive(Debug)]
pub(crate) enum WireNews<'a> {
    /// A request has completed. With it come the buffers of the receive queue that the wire
    /// shares, if it does.
    Completed(&'a WorkCompletion, Option<&'a mut SharedReceives>),
    /// The device has said something of the wire.
    Said(&'a AsyncEvent),
    /// The completion queue was found empty after everything in it was taken.
    Empty,
}

impl WireNews<'_> {
    /// Drops news of a wire that is gone. A buffer that comes with it may be used again.
    #[cold]
    pub(super) fn turn_away(self) -> Heard {
        if let Self::Completed(completion, Some(shared)) = self {
            let _ = shared.complete(completion.id());
        }
        Heard::Stray
    }
}

/// The consequence of news.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Nothing follows.
    Nothing,
    /// Something may follow: output, or a credit report.
    Something,
    /// The news was of nothing that the wire has.
    Stray,
    /// A frame was refused.
    Refused(Box<Fault>),
    /// The wire has broken.
    Broke(Box<EndCause>),
}

/// News of nothing that a session has.
#[derive(Debug)]
pub(crate) struct Stray;
