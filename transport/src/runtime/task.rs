//! A node that tasks of an executor drive ([`Driver::Tasks`]).
//!
//! Two tasks drive it, so that no thread of the executor blocks the others. The *driving* task runs
//! when the executor's reactor has events of a connection or of the epoll set. The *flushing* task runs
//! when a program's task has published something and the ring was armed.
//!
//! The publishing task wakes the flushing task. So an executor may queue the flushing task behind
//! the publishing one, where no other thread takes it. Nothing else waits for it meanwhile: a task
//! that awaits something of the node sends everything itself. A second publisher rings the node's
//! bell, which wakes the driving task.
//!
//! The flushing task lets the tasks that are ready run before it flushes. Of 64 tasks that are woken
//! by one frame of answers, each publishes its next request, and the requests leave as one frame.
//!
//! ```text
//!   driving task                                thread that turns the engine meanwhile
//!   unpark; ask epoll; take reports             turn
//!   anything? turn, wake tasks; again           parked? arm what it armed, set the alarm
//!   nothing? arm, look again, set the alarm;
//!     park: wait for the reactor
//! ```

use std::{
    sync::atomic::Ordering,
    task::{Poll, Waker},
    time::Duration,
};

use ibex_base::sync::{AtomicBool, Mutex, lock};
use ibex_ring::parking::{self, AtSlot, Ticket};

use super::{Driving, EventLoop, Runtime};
use crate::{
    clock,
    engine::{self, ReadyWires},
    node::{CloseReport, Wait},
    wire::{Reactor, Watcher},
};

/// Result of one step of the task that drives a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step has moved something. Another step follows, after other tasks have run.
    Moved,
    /// The step found nothing. The next step is due when the task is woken.
    Parked,
    /// The node is closed, and nothing is left to be driven.
    Over,
}

/// What the task that drives an engine keeps from one step to the next.
#[derive(Debug)]
pub struct Steps {
    /// The reactor has reported the epoll set, which may have events that were not taken. The task
    /// sets this after it has cleared the report, so that the reactor reports later readiness anew.
    pub set_is_ready: bool,
}

impl Default for Steps {
    fn default() -> Self {
        Self { set_is_ready: true }
    }
}

/// The task that sends what other tasks have published and left.
#[derive(Debug, Default)]
pub(crate) struct Flushing {
    /// True if something was published since the last turn began.
    is_owed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Flushing {
    /// Asks the flushing task for a turn. Returns false if an earlier request has not led to a turn
    /// yet.
    fn ask(&self) -> bool {
        // OWED, pairs with `begin`: the turn sees everything that came before.
        if self.is_owed.swap(true, Ordering::Release) {
            return false;
        }
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Notes that a turn begins, for the thread that has the engine's lock.
    pub(crate) fn begin(&self) {
        // This load saves the locked instruction for most turns, which nobody has asked for.
        if self.is_owed.load(Ordering::Relaxed) {
            // OWED, pairs with `ask`.
            self.is_owed.swap(false, Ordering::Acquire);
        }
    }

    /// Returns whether a turn was asked for and has not begun. A task that has registered before it
    /// looks here misses nothing: `ask` takes the waker's lock after it sets the flag.
    fn is_owed(&self) -> bool {
        self.is_owed.load(Ordering::Relaxed)
    }

    fn register(&self, waker: &Waker) {
        let mut registered = lock(&self.waker);
        match &mut *registered {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }
}

impl EventLoop {
    /// Lets the executor's reactor watch the connections of the sessions to come, until a thread
    /// waits or polls by itself: the reactor may not run meanwhile.
    pub fn watch_by(&self, watch: Watcher) {
        let reports = self.reports.clone();
        let reactor = Reactor { watch, reports };
        self.engine.lock().connections.tools.reactor = Some(reactor);
        self.has_reactor.store(true, Ordering::Relaxed);
    }

    /// Has the epoll set report all connections, for a thread that waits or sleeps there.
    pub(super) fn leave_reactor(&self) {
        // The engine's lock orders everything else. A wait that begins at the same time takes it too.
        if self.has_reactor.load(Ordering::Relaxed) {
            self.engine.lock().connections.leave_reactor();
            self.has_reactor.store(false, Ordering::Relaxed);
        }
    }

    /// Runs one step of the task that drives the node, which has `waker`.
    pub fn step(&self, steps: &mut Steps, waker: &Waker) -> Step {
        self.engine.unpark();
        if self.node.is_closed()
            && let Some(runtime) = self.runtime()
            && runtime.closing_ends(clock::now()).is_none()
        {
            let _ = runtime.end_close();
            self.leave_reactor();
            return Step::Over;
        }
        let mut engine = self.engine.lock();
        let now = clock::now();
        engine.note_time(now);
        engine.note_step();
        let mut ready = ReadyWires::NOTHING;
        if steps.set_is_ready {
            engine::sleep(&self.epoll, Some(Duration::ZERO), &mut ready);
        }
        steps.set_is_ready = !ready.is_empty();
        self.reports
            .take(waker, |session| ready.add_reported(session));
        if ready.is_empty() && !self.engine.is_marked() {
            let is_parked = self.engine.park(engine, |engine, stay_awake| {
                let next = engine.prepare_sleep(now, stay_awake);
                next.map(|next| engine.set_alarm(now, next)).is_some()
            });
            if is_parked {
                return Step::Parked;
            }
            engine = self.engine.lock();
        }
        self.turn(engine, &ready);
        Step::Moved
    }

    /// Returns whether a task looks for a moment before a wait as configured by `wait`: it drives the
    /// engine, calls spin, and no call has found that a poll holds up threads that compute.
    pub(crate) fn polls_briefly(&self, wait: Wait) -> bool {
        let is_tasks = self.node.driving == Driving::Tasks;
        is_tasks && !wait.spin().is_zero() && !self.yielding.is_dear()
    }

    /// Waits for the flushing task until other tasks have published messages. Returns false when
    /// the node is closed.
    ///
    /// Before the task calls [`flush`](Self::flush), it lets the other tasks run that are ready.
    /// What they publish then leaves with the same turn, in one frame for each channel.
    pub fn poll_published(&self, waker: &Waker) -> Poll<bool> {
        self.flushing.register(waker);
        if self.flushing.is_owed() {
            return Poll::Ready(true);
        }
        match self.node.is_closed() {
            true => Poll::Ready(false),
            false => Poll::Pending,
        }
    }

    /// Sends messages that other tasks have published, unless another turn has sent them meanwhile.
    pub fn flush(&self) {
        if self.flushing.is_owed() {
            let mut engine = self.engine.lock();
            engine.note_step();
            let moved = self.turn(engine, &ReadyWires::NOTHING);
            self.settle_turn(moved);
        }
    }

    /// Wakes a sleeping leader by the bell, or the flushing task if the driving task is parked. If
    /// the flushing task was asked before and has not run, the bell wakes the driving task itself.
    pub(crate) fn ring_sleeper(&self) {
        let is_asked = self.node.driving == Driving::Tasks
            && !self.engine.has_sleeping_leader()
            && self.flushing.ask();
        if !is_asked {
            self.bell.wake();
        }
    }
}

impl Runtime {
    /// Returns the report of the close that was begun, for a task. Pending until there is one, with
    /// `waker` left under `held`.
    pub fn poll_closed(&self, held: &mut Option<Ticket>, waker: &Waker) -> Poll<CloseReport> {
        let check = || lock(&self.close_report).clone();
        parking::poll(AtSlot::new(&self.close_waiters, held, check), waker, || ())
    }

    /// Takes back the waker that [`poll_closed`](Self::poll_closed) left.
    pub fn leave_closed(&self, held: &mut Option<Ticket>) {
        self.close_waiters.leave(held);
    }

    /// Closes the node because its driving task was dropped. Waits for up to `linger` until sent
    /// messages are delivered.
    pub fn driver_left(&self, linger: Duration) {
        if !self.is_closed() {
            self.lost_driver.store(true, Ordering::Relaxed);
        }
        let _ = self.close(linger);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Driver, RuntimeConfig};
    use super::*;

    fn runtime() -> Arc<Runtime> {
        Runtime::start(RuntimeConfig {
            node_credit_bytes: 1 << 20,
            ..RuntimeConfig::of_test(Driver::Tasks)
        })
        .expect("a runtime")
    }

    /// One task asks for a turn while another has the engine, and a third cannot run a turn of its
    /// own. The flushing task must still run the turn.
    #[test]
    fn a_turn_that_nobody_runs_stays_owed() {
        let runtime = runtime();
        let runtime = runtime.first();
        let engine = runtime.engine.lock();
        assert!(runtime.flushing.ask());
        runtime.poll_in_passing();
        assert!(runtime.flushing.is_owed());
        drop(engine);
        assert_eq!(runtime.poll_published(Waker::noop()), Poll::Ready(true));
        runtime.flush();
        assert!(!runtime.flushing.is_owed());
        assert!(runtime.poll_published(Waker::noop()).is_pending());
    }
}
