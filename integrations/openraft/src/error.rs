//! Errors of calls and streams, in the form on which openraft acts.
//!
//! openraft waits before it tries an unreachable node again, and asks again at once after an error
//! of the network.

use std::{io, time::Duration};

use ibex::{
    SendError, SendErrorKind,
    calls::{CallError, CallErrorKind},
};
use openraft::{
    RaftTypeConfig,
    alias::{NodeIdOf, VoteOf},
    error::{NetworkError, RPCError, Timeout, Unreachable},
    network::RPCTypes,
    vote::{RaftLeaderId, RaftVote},
};

/// A request of this node, for its errors.
#[derive(Clone)]
pub(crate) struct Asked<C: RaftTypeConfig> {
    pub(crate) action: RPCTypes,
    pub(crate) target: NodeIdOf<C>,
    pub(crate) within: Duration,
    from: NodeIdOf<C>,
}

impl<C: RaftTypeConfig> Asked<C> {
    /// Describes a request of the candidate or leader that `vote` names, which is this node.
    pub(crate) fn new(
        action: RPCTypes,
        vote: &VoteOf<C>,
        target: &NodeIdOf<C>,
        within: Duration,
    ) -> Asked<C> {
        Asked {
            action,
            from: vote.leader_id().node_id().clone(),
            target: target.clone(),
            within,
        }
    }

    pub(crate) fn timeout(&self) -> Timeout<C> {
        Timeout {
            action: self.action,
            id: self.from.clone(),
            target: self.target.clone(),
            timeout: self.within,
        }
    }

    pub(crate) fn error(&self, error: &CallError) -> RPCError<C> {
        match error.kind() {
            CallErrorKind::DeadlineExceeded => self.timeout().into(),
            // The other node reports that it cannot do this, now or in a moment; or the request is
            // too long.
            CallErrorKind::Failed => unreachable(error),
            CallErrorKind::NotSent if is_too_long(error) => unreachable(error),
            _ => RPCError::Network(NetworkError::from_string(error)),
        }
    }

    pub(crate) fn stream_error(&self, error: &io::Error) -> RPCError<C> {
        match error.kind() {
            io::ErrorKind::TimedOut => self.timeout().into(),
            _ => RPCError::Network(NetworkError::from_string(error)),
        }
    }
}

/// Returns whether only another session may help after this error.
pub(crate) fn ends_session(error: &CallError) -> bool {
    match error.kind() {
        CallErrorKind::Lost | CallErrorKind::ServiceEnded => true,
        CallErrorKind::NotSent => !is_too_long(error),
        _ => false,
    }
}

fn is_too_long(error: &CallError) -> bool {
    let reason = error.send_error().map(SendError::kind);
    reason == Some(SendErrorKind::TooLong)
}

pub(crate) fn unreachable<C: RaftTypeConfig>(why: impl ToString) -> RPCError<C> {
    RPCError::Unreachable(Unreachable::from_string(why))
}
