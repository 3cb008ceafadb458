//! The place where a thread waits for all peers of a node, including those that will come.
//!
//! Each member has a waker that leaves the member's number here. So the woken thread looks only at
//! members with events, and idle peers cost nothing.

use std::{sync::Arc, task::Waker, time::Instant};

use ibex_base::fork;
use ibex_ring::parking::{Condition, ReadySet, TimedOut};

use super::{EventLoop, PollTarget, Runtime};
use crate::node::{Notified, SessionShared};

/// The members and sessions of a node that have events for one waiter.
#[derive(Clone, Debug)]
pub struct Gathering {
    runtime: Arc<Runtime>,
    notified: Arc<ReadySet<Notified>>,
}

impl Gathering {
    /// Makes a gathering that learns of every session. Sessions that exist come first.
    #[must_use]
    pub fn of(runtime: &Arc<Runtime>) -> Self {
        Self::with(runtime, None)
    }

    /// Makes a gathering for a publisher: it learns of a session each time that the peer opens a
    /// receiving end of this name for which there is no sending end here. Sessions that have such
    /// ends come first.
    #[must_use]
    pub fn of_subscribers(runtime: &Arc<Runtime>, name: &str) -> Self {
        Self::with(runtime, Some(name))
    }

    fn with(runtime: &Arc<Runtime>, subscribed: Option<&str>) -> Self {
        let notified = Arc::default();
        runtime.gather(&notified, subscribed);
        Self {
            runtime: runtime.clone(),
            notified,
        }
    }

    /// Returns the events. Waiters register at its place for events of members, sessions and the
    /// node.
    #[must_use]
    pub fn notified(&self) -> &ReadySet<Notified> {
        &self.notified
    }

    /// Returns the waker that leaves an event of a member.
    #[must_use]
    pub fn waker(&self, member: usize) -> Waker {
        self.notified.waker(move || Notified::Member(member))
    }

    /// Returns the engines of the node, any of which may bring events.
    #[must_use]
    pub fn event_loops(&self) -> &[Arc<EventLoop>] {
        self.runtime.event_loops()
    }

    /// Returns the kind of poll of a call that waits for a member at `session` beside others, whose
    /// kind is `poll_target`. A member over frames makes it that of a socket, the dearest, since others may
    /// be over sockets.
    #[must_use]
    pub fn looks_with(poll_target: PollTarget, session: &SessionShared) -> PollTarget {
        match session.poll_target() {
            PollTarget::Memory => poll_target,
            PollTarget::Queue | PollTarget::Socket => PollTarget::Socket,
        }
    }

    /// Returns whether the node was closed, or belongs to the process that this one was forked
    /// from.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        fork::is_child() || self.runtime.is_closed()
    }

    /// Runs a turn, where callers turn the engine.
    pub fn poll(&self) {
        self.runtime.poll_in_passing();
    }

    /// Runs a turn for a caller that has found events so often that other peers may have waited long
    /// for a turn.
    pub fn poll_all(&self) {
        self.runtime.poll_all();
    }

    /// Waits until `condition` holds, which leaves its waker where [`notified`](Self::notified) has its
    /// waiters.
    pub fn wait<C: Condition>(
        &self,
        deadline: Option<Instant>,
        poll_target: PollTarget,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        self.runtime.wait(deadline, poll_target, condition)
    }
}
