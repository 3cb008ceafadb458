//! The tasks that drive one engine in a simulated executor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Wake, Waker},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::reactor::TestReactor;
use crate::runtime::{EventLoop, Step, Steps};

/// The two tasks of an engine, and their state in the executor.
pub(super) struct Tasks {
    pub(super) event_loop: Arc<EventLoop>,
    reactor: TestReactor,
    flushing: Arc<Flag>,
    driving: Arc<Flag>,
    steps: Steps,
    pub(super) is_over: bool,
    /// The executor does not run the tasks before this step.
    pub(super) lags_until: u64,
}

/// A flag that its waker sets.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Tasks {
    pub(super) fn of(event_loop: &Arc<EventLoop>) -> Self {
        let flushing = Arc::<Flag>::default();
        let driving = Arc::<Flag>::default();
        // Both tasks run once when they are spawned.
        flushing.0.store(true, Ordering::SeqCst);
        driving.0.store(true, Ordering::SeqCst);
        let reactor = TestReactor::new();
        let watches = reactor.clone();
        event_loop.watch_by(Box::new(move |connection, waker| {
            watches.watch(connection, waker)
        }));
        Self {
            event_loop: event_loop.clone(),
            reactor,
            flushing,
            driving,
            steps: Steps::default(),
            is_over: false,
            lags_until: 0,
        }
    }

    /// Returns whether an executor would run one of the two tasks.
    pub(super) fn is_woken(&self) -> bool {
        self.reactor.drive();
        let is_set = |flag: &Flag| flag.0.load(Ordering::SeqCst);
        !self.is_over && (is_set(&self.flushing) || is_set(&self.driving) || self.is_readable())
    }

    fn is_readable(&self) -> bool {
        let mut set = [PollFd::from_borrowed_fd(
            self.event_loop.as_fd(),
            PollFlags::IN,
        )];
        let now = Timespec::default();
        poll(&mut set, Some(&now)).expect("the set can be asked") > 0
    }

    pub(super) fn run(&mut self) {
        if self.flushing.0.swap(false, Ordering::SeqCst)
            && self
                .event_loop
                .poll_published(&self.flushing.clone().into())
                == Poll::Ready(true)
        {
            self.event_loop.flush();
        }
        self.steps.set_is_ready |= self.is_readable();
        if self.driving.0.swap(false, Ordering::SeqCst) || self.steps.set_is_ready {
            let waker = Waker::from(self.driving.clone());
            match self.event_loop.step(&mut self.steps, &waker) {
                Step::Moved => waker.wake(),
                Step::Parked => {}
                Step::Over => self.is_over = true,
            }
        }
    }

    /// Runs the tasks until both are parked.
    pub(super) fn rest(&mut self) {
        for _ in 0..100_000 {
            if self.is_parked() {
                return;
            }
            self.run();
        }
        panic!("the engine never comes to rest");
    }

    /// Returns whether the tasks are parked. No connection has bytes then, or an end, that they have
    /// not read.
    pub(super) fn is_parked(&self) -> bool {
        let began = Instant::now();
        while !self.is_woken() {
            let Some(unread) = self.unread() else {
                return true;
            };
            // Another processor may just be delivering them.
            assert!(began.elapsed() < WATCHDOG, "nobody reads {unread}");
        }
        false
    }

    /// Returns a connection that has bytes, or an end, that nobody has read.
    fn unread(&self) -> Option<String> {
        let engine = self.event_loop.engine.lock();
        let mut connections = engine.connections.all.values();
        connections.find_map(|connection| {
            let stream = connection.socket.stream();
            let mut ends = [PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP)];
            let ready = poll(&mut ends, Some(&Timespec::default())).expect("it can be asked");
            let is_unread = ready > 0 && !connection.socket.is_parted();
            is_unread.then(|| format!("session {}: {ends:?}", connection.id()))
        })
    }
}

const WATCHDOG: Duration = Duration::from_secs(120);
