//! The tasks that drive one engine in a simulated executor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Wake, Waker},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::runtime::{EventLoop, Step};

/// The two tasks of an engine, and their state in the executor.
pub(super) struct Tasks {
    pub(super) event_loop: Arc<EventLoop>,
    flushing: Arc<Flag>,
    waker: Waker,
    is_parked: bool,
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
        // The flushing task runs once when it is spawned.
        flushing.0.store(true, Ordering::SeqCst);
        Self {
            event_loop: event_loop.clone(),
            waker: flushing.clone().into(),
            flushing,
            is_parked: false,
            is_over: false,
            lags_until: 0,
        }
    }

    /// Returns whether an executor would run one of the two tasks.
    pub(super) fn is_woken(&self) -> bool {
        let is_flushing = self.flushing.0.load(Ordering::SeqCst);
        !self.is_over && (is_flushing || !self.is_parked || self.is_readable())
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
            && self.event_loop.poll_published(&self.waker) == Poll::Ready(true)
        {
            self.event_loop.flush();
        }
        if !self.is_parked || self.is_readable() {
            let step = self.event_loop.step();
            self.is_parked = step == Step::Parked;
            self.is_over = step == Step::Over;
        }
    }
}
