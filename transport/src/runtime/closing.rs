//! The close of a node, with all of its engines, and of one session.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use ibex_base::{fork, sync::lock};
use ibex_protocol::format::control::CloseReason;
use ibex_ring::parking::{AtSlot, Wakers, thread_waker};

use super::{Driving, EventLoop, Runtime};
use crate::{
    clock,
    node::{CloseReport, SessionShared},
};

impl Runtime {
    /// Breaks off all channels that the program has not closed. They do not end in order, but with
    /// this reason.
    pub fn break_off(&self, reason: CloseReason) {
        for event_loop in self.event_loops() {
            event_loop.with_engine(|engine, _| engine.connections.break_off(reason));
        }
    }

    /// Closes every channel and session in order. Delivers sent messages for up to `timeout`, and
    /// reports those that were not delivered. Blocked calls of other threads return.
    ///
    /// Closing again returns the same report, as soon as the first call has it. If the first call
    /// is still under way, the earlier of the two deadlines counts for both.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        if fork::is_child() {
            return CloseReport::default();
        }
        // A driving task may be gone, or wait for this very thread. So under `Driving::Tasks` even
        // a later call closes the node itself.
        if !self.start_close(timeout) && self.driving != Driving::Tasks {
            return self.await_close_report();
        }
        let until = || self.closing_ends(clock::now());
        while let Some(deadline) = until() {
            if !self.driving.has_thread() {
                self.lead_each(deadline);
            } else {
                let soon = soon(deadline);
                let is_over = || until().is_none().then_some(());
                let _ = self.wait_at(&self.accept_waiters, Some(soon), is_over);
            }
        }
        self.end_close()
    }

    /// Leads each engine for one round. An engine that another thread leads is left to it.
    fn lead_each(&self, deadline: Option<Instant>) {
        let deadline = match self.event_loops() {
            [_] => deadline,
            // The other engines must be turned as well.
            _ => Some(soon(deadline)),
        };
        for event_loop in self.event_loops() {
            match event_loop.engine.try_lead() {
                Some(_lead) => event_loop.lead(&thread_waker().1, deadline),
                None => thread::yield_now(),
            }
        }
    }

    /// Closes the node. Under [`Driver::Tasks`](super::Driver::Tasks) the driving tasks finish the
    /// close, so that a thread of the executor does not wait for it.
    pub fn close_in_passing(&self, timeout: Duration) {
        if self.driving == Driving::Tasks && !self.lost_driver.load(Ordering::Relaxed) {
            self.start_close(timeout);
        } else {
            let _ = self.close(timeout);
        }
    }

    /// Begins to close every channel and session, and does not wait for the end. Returns whether
    /// this is the first close.
    pub(crate) fn start_close(&self, timeout: Duration) -> bool {
        // CLOSED, pairs with `NodeState::is_closed`.
        let is_first = !self.closed.swap(true, Ordering::Release);
        self.sessions.begin_close();
        // A time that the clock cannot express means no limit.
        let deadline = clock::now().checked_add(timeout);
        for event_loop in self.event_loops() {
            event_loop.with_engine(|engine, context| {
                engine.begin_close(deadline, context);
                self.accept_waiters.take(&mut context.wakers);
                self.draining.take_waiters(&mut context.wakers);
                event_loop.gatherings.node_closes(&mut context.wakers);
            });
        }
        // I/O threads wake up for the new deadline. Where there are none, `close` leads itself.
        self.wake_engines();
        is_first
    }

    /// Returns the time by which closing must end; `None` when every engine has finished closing.
    pub(crate) fn closing_ends(&self, now: Instant) -> Option<Option<Instant>> {
        let ends = |event_loop: &Arc<EventLoop>| {
            event_loop.with_engine(|engine, _| engine.closing_ends(now))
        };
        self.event_loops().iter().find_map(ends)
    }

    /// Ends the remaining sessions of a node when the time of its close is over, and returns the
    /// report.
    pub(crate) fn end_close(&self) -> CloseReport {
        // Relaxed: the report's lock orders what this call does for those that come later.
        if self.close_ends.swap(true, Ordering::Relaxed) {
            return self.await_close_report();
        }
        let mut report = CloseReport::default();
        for event_loop in self.event_loops() {
            let of_engine = event_loop.with_engine(|engine, context| {
                // Sessions on their way to this engine are refused, and their peers are notified.
                event_loop.take_changes(engine, context);
                engine.finish_close(context)
            });
            report.add(of_engine);
        }
        let mut wakers = Wakers::new();
        self.events.close(&mut wakers);
        wakers.wake();
        // The report is set before the I/O threads are joined, because a waker on one of them may
        // close the node again and wait for the report.
        *lock(&self.close_report) = Some(report.clone());
        self.close_reported.notify_all();
        self.close_waiters.wake_all();
        self.wake_engines();
        self.event_loops().iter().for_each(|it| it.join());
        self.control_thread.stop();
        // No call accepts these sessions any more, and each of them holds this runtime.
        self.forget_accepted();
        report
    }
}

impl SessionShared {
    /// Closes this session alone, as [`Runtime::close`] closes each session of a node. The peer
    /// receives the `reason`. Returns what was not delivered by the end of the session, which comes
    /// after `timeout` at the latest.
    ///
    /// Closing again returns the same report. The earliest deadline counts for all calls.
    pub fn close(&self, reason: &str, timeout: Duration) -> CloseReport {
        if fork::is_child() {
            return CloseReport::default();
        }
        self.begin_close(reason, timeout);
        let over = || {
            self.ending
                .close_report()
                .or_else(|| self.is_over().then(CloseReport::default))
        };
        // The engine ends the session when its time is up.
        let mut held = None;
        let report = self.wait_for(None, AtSlot::new(&self.ending.waiters, &mut held, over));
        report.unwrap_or_default()
    }

    /// Begins to close this session, and does not wait for the end.
    pub fn begin_close(&self, reason: &str, timeout: Duration) {
        if fork::is_child() {
            return;
        }
        // A time that the clock cannot express means no limit.
        let deadline = clock::now().checked_add(timeout);
        // Whoever finds a handle ended by this sees the reason.
        self.ending.begin();
        self.requests.on_connection(|connection, context| {
            connection.core.begin_close(Some(reason), deadline, context);
        });
        // The thread that sleeps in the epoll set must take up the new deadline.
        self.requests.event_loop().bell.wake();
    }
}

/// Returns the time at which closing checks again that everything is delivered.
fn soon(deadline: Option<Instant>) -> Instant {
    let soon = clock::now() + CLOSE_POLL;
    deadline.map_or(soon, |deadline| deadline.min(soon))
}

/// Time that closing sleeps before it checks again that everything is delivered.
const CLOSE_POLL: Duration = Duration::from_millis(2);
