//! A node that tasks of an executor drive ([`Driver::Tasks`]).
//!
//! Two tasks do, so that none of the executor's threads is in the way of the others. The
//! *driving* task runs when the executor's reactor has news of the epoll set. The *flushing* task
//! runs when a program's task has published something and the ring was armed. It is woken by the
//! publishing task, so an executor may queue it behind that one where no other thread takes it;
//! until it runs, nothing else waits for it: a task that awaits something of the node sends
//! everything itself, and a second publisher rings the node's bell, which wakes the driving task.
//!
//! ```text
//!   driving task                                whoever turns the engine meanwhile
//!   unpark; ask epoll                           turn
//!   anything? turn, wake tasks; yield           parked? arm what it armed, set the alarm
//!   nothing? arm, look again, set the alarm;
//!     park: wait for the reactor
//! ```

use std::{
    sync::atomic::Ordering,
    task::{Poll, Waker},
    time::Duration,
};

use ibex_base::{
    fork,
    sync::{AtomicBool, Mutex, lock},
};
use ibex_ring::parking::Ticket;

use super::{Driving, EventLoop, Runtime};
use crate::{
    clock,
    engine::{self, Ready},
    node::CloseReport,
};

/// Result of one step of the task that drives a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step has moved something. Another step follows, after other tasks have run.
    Moved,
    /// The step found nothing. The next step is due when the epoll set is readable.
    Parked,
    /// The node is closed, and nothing is left to be driven.
    Over,
}

/// Place of a task that waits for the end of a close.
#[derive(Debug, Default)]
pub struct CloseWait(pub(crate) Option<Ticket>);

/// The task that sends what other tasks have published and left.
#[derive(Debug, Default)]
pub(crate) struct Flushing {
    /// Something was published since a turn began.
    is_owed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Flushing {
    /// Asks the flushing task for a turn. Returns false if a turn was asked for before and has not begun.
    fn ask(&self) -> bool {
        // OWED, pairs with `begin`: the turn sees everything that came before.
        if self.is_owed.swap(true, Ordering::AcqRel) {
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
        // Most turns are asked for by nobody.
        if self.is_owed.load(Ordering::Relaxed) {
            self.is_owed.swap(false, Ordering::AcqRel);
        }
    }

    /// Returns whether a turn was asked for and has not begun.
    fn is_owed(&self) -> bool {
        self.is_owed.load(Ordering::Acquire)
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
    /// Runs one step of the task that drives the node. Before it, the task forgets what its
    /// reactor has said so far: whatever becomes ready later has to be told anew.
    pub fn step(&self) -> Step {
        self.engine.unpark();
        if self.node.is_closed()
            && let Some(runtime) = self.runtime()
            && runtime.closing_ends(clock::now()).is_none()
        {
            let _ = runtime.end_close();
            return Step::Over;
        }
        let mut engine = self.engine.lock();
        engine.note_time(clock::now());
        let ready = engine::sleep(&self.epoll, Some(Duration::ZERO));
        if ready.is_empty() && !self.engine.is_marked() {
            let is_parked = self.engine.park(engine, |engine, stay_awake| {
                let now = clock::now();
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

    /// Sends what other tasks have published, for the flushing task; it is woken when there is
    /// more. Ready when the node is closed.
    pub fn poll_flushing(&self, waker: &Waker) -> Poll<()> {
        self.flushing.register(waker);
        if self.flushing.is_owed() {
            let moved = self.turn(self.engine.lock(), &Ready::NOTHING);
            self.settle_turn(moved);
        }
        match self.node.is_closed() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Rings for the leader that sleeps, or has the flushing task run for the driving task that
    /// is parked. If the flushing task was asked before and has not run, the bell wakes the
    /// driving task itself.
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
    /// The report of the close that was begun, for a task; pending until there is one.
    pub fn poll_closed(&self, wait: &mut CloseWait, waker: &Waker) -> Poll<CloseReport> {
        self.close_waiters.renew(&mut wait.0, waker);
        let report = lock(&self.close_report).clone();
        match report {
            Some(report) => {
                self.leave_closed(wait);
                Poll::Ready(report)
            }
            None => Poll::Pending,
        }
    }

    /// Takes back what [`poll_closed`](Self::poll_closed) left.
    pub fn leave_closed(&self, wait: &mut CloseWait) {
        if !fork::is_child() {
            self.close_waiters.leave(&mut wait.0);
        }
    }

    /// Notes that the node has lost its driving task, for whoever drops that: the node is
    /// closed, waiting for up to `linger` until what was sent is delivered.
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
    use crate::node::Wait;

    fn runtime() -> Arc<Runtime> {
        Runtime::start(RuntimeConfig {
            driver: Driver::Tasks,
            engines: 1,
            wait: Wait::Event,
            wait_engine: Wait::Event,
            cores: Vec::new(),
            session_credit_bytes: 1 << 20,
            node_credit_bytes: 1 << 20,
            memory_limit: 1 << 30,
            notice_timeout: Duration::from_secs(3),
            session_timeout: Duration::from_secs(30),
        })
        .expect("a runtime")
    }

    /// A task asks for a turn while another has the engine, and a third one looks in vain for a
    /// turn of its own meanwhile: the flushing task has it still to do.
    #[test]
    fn a_turn_that_nobody_runs_stays_owed() {
        let runtime = runtime();
        let runtime = runtime.first();
        let engine = runtime.engine.lock();
        assert!(runtime.flushing.ask());
        runtime.poll_in_passing();
        assert!(runtime.flushing.is_owed());
        drop(engine);
        assert!(runtime.poll_flushing(Waker::noop()).is_pending());
        assert!(!runtime.flushing.is_owed());
    }
}
