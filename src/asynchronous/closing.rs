//! Closing a node for a task.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use ibex_base::fork;
use ibex_transport::runtime::CloseWait;

use crate::{CloseReport, Driver, Node};

/// A node's close, for a task. See [`Node::close_async`].
pub(crate) struct CloseAsync<'a> {
    node: &'a Node,
    timeout: Option<Duration>,
    wait: CloseWait,
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
            wait: CloseWait::default(),
        }
    }

    /// Begins to close, and makes sure that the close ends. Returns the report if that took no
    /// waiting.
    fn begin_close(&self, timeout: Duration) -> Option<CloseReport> {
        let runtime = self.runtime.clone();
        if runtime.driver() == Driver::Tasks {
            runtime.close_in_passing(timeout);
            return None;
        }
        let close = move || {
            let _ = runtime.close(timeout);
        };
        let waiting = self.dialers.run(Box::new(close));
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
        let runtime = &this.node.runtime;
        runtime.poll_closed(&mut this.wait, context.waker())
    }
}

impl Drop for CloseAsync<'_> {
    fn drop(&mut self) {
        self.node.runtime.leave_closed(&mut self.wait);
    }
}
