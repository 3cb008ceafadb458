//! Closing a node, or one session, for a task.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ibex_base::{fork, threads};
use ibex_ring::parking::Ticket;
use ibex_transport::node::SessionShared;

use crate::{CloseReport, Driver, Node, Peer};

/// A node's close, for a task. See [`Node::close_async`].
pub(crate) struct CloseAsync<'a> {
    node: &'a Node,
    timeout: Option<Duration>,
    wait: Option<Ticket>,
}

impl Node {
    /// Closes the node in a task, as [`close`](Self::close) does. The close begins with the first
    /// poll.
    ///
    /// Dropping the future later does not take that back: the node goes on closing, and the next
    /// call of [`close`](Self::close) or of this method returns the report.
    ///
    /// Unless tasks drive the node ([`Driver::Tasks`]), a thread waits for the end.
    pub fn close_async(&self, timeout: Duration) -> impl Future<Output = CloseReport> {
        CloseAsync {
            node: self,
            timeout: Some(timeout),
            wait: None,
        }
    }

    /// Begins to close, and makes sure that the close ends. Returns the report if that took no
    /// waiting.
    fn begin_close(&self, timeout: Duration) -> Option<CloseReport> {
        let runtime = self.runtime().clone();
        if runtime.driver() == Driver::Tasks {
            runtime.close_in_passing(timeout);
            return None;
        }
        let close = move || {
            let _ = runtime.close(timeout);
        };
        let waiting = threads::spawn("ibex-close", close);
        // If no thread can be started, the calling thread waits.
        waiting.err().map(|_| self.close(timeout))
    }
}

impl Future for CloseAsync<'_> {
    type Output = CloseReport;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CloseReport> {
        let this = self.get_mut();
        if fork::is_child() {
            return Poll::Ready(CloseReport::default());
        }
        let timeout = this.timeout.take();
        if let Some(report) = timeout.and_then(|timeout| this.node.begin_close(timeout)) {
            return Poll::Ready(report);
        }
        let runtime = this.node.runtime();
        runtime.poll_closed(&mut this.wait, context.waker())
    }
}

impl Drop for CloseAsync<'_> {
    fn drop(&mut self) {
        self.node.runtime().leave_closed(&mut self.wait);
    }
}

/// The close of one session, for a task. See [`Peer::close_async`].
pub(crate) struct CloseSessionAsync {
    session: Arc<SessionShared>,
    /// The reason and the time of a close that has not begun.
    due: Option<(String, Duration)>,
    held: Option<Ticket>,
}

impl Peer {
    /// Ends this session in a task, as [`close`](Self::close) does. The close begins with the first
    /// poll.
    ///
    /// Dropping the future later does not take that back: the session goes on closing, and the next
    /// call of [`close`](Self::close) or of this method returns the report. Under
    /// [`Driver::Caller`] the program has to turn the engine meanwhile.
    pub fn close_async(&self, linger: Duration) -> impl Future<Output = CloseReport> + use<> {
        self.close_because_async("", linger)
    }

    /// Ends this session in a task, for a reason that the peer receives, as
    /// [`close_because`](Self::close_because) does.
    pub fn close_because_async(
        &self,
        reason: &str,
        linger: Duration,
    ) -> impl Future<Output = CloseReport> + use<> {
        CloseSessionAsync {
            session: self.session().clone(),
            due: Some((reason.to_owned(), linger)),
            held: None,
        }
    }
}

impl Future for CloseSessionAsync {
    type Output = CloseReport;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CloseReport> {
        let this = self.get_mut();
        if fork::is_child() {
            return Poll::Ready(CloseReport::default());
        }
        if let Some((reason, linger)) = this.due.take() {
            this.session.begin_close(&reason, linger);
        }
        this.session.runtime().turn_for_caller();
        this.session
            .ending
            .poll_closed(&mut this.held, context.waker())
    }
}

impl Drop for CloseSessionAsync {
    fn drop(&mut self) {
        self.session.ending.leave(&mut self.held);
    }
}
