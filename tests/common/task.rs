//! A minimal executor: one task on the calling thread.

use std::{
    future::Future,
    mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use ibex::{Driver, Node};
use ibex_harness::wakes::Wakes;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use tokio::runtime::{Builder, Runtime};

use super::stage::LONG;

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `task` until it is ready. Between polls it sleeps until it is woken. Under
/// `Driver::Caller`, where only calls make progress, it turns the engine meanwhile and sleeps on
/// the node's descriptor.
pub(crate) fn run<F: Future>(node: &Node, driver: Driver, task: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
            return output;
        }
        if driver != Driver::Caller {
            thread::park_timeout(LONG);
            continue;
        }
        while node.poll() {}
        if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
            return output;
        }
        sleep_on(node);
    }
}

/// Polls `task` once.
pub(crate) fn poll_once<F: Future + Unpin>(task: &mut F) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    pin!(task).poll(&mut Context::from_waker(&waker))
}

/// Polls `task` once. If it is pending, waits until it is woken, and does not poll it again.
pub(crate) fn poll_until_woken<F: Future + Unpin>(
    node: &Node,
    driver: Driver,
    task: &mut F,
) -> Poll<F::Output> {
    let woken = Arc::new(Woken {
        is_woken: AtomicBool::new(false),
        thread: thread::current(),
    });
    let waker = Waker::from(woken.clone());
    let polled = pin!(task).poll(&mut Context::from_waker(&waker));
    while polled.is_pending() && !woken.is_woken.load(Ordering::Relaxed) {
        match driver {
            Driver::Threads | Driver::Tasks => thread::park_timeout(LONG),
            Driver::Caller if node.poll() => {}
            Driver::Caller => sleep_on(node),
        }
    }
    polled
}

/// Polls `task`, which stays pending, again whenever a poll has woken it. Returns the number of
/// polls, at most `limit`.
pub(crate) fn polls_until_quiet<F: Future + Unpin>(task: &mut F, limit: usize) -> usize {
    let (wakes, waker) = Wakes::counted();
    for polls in 1..=limit {
        let before = wakes.get();
        let polled = pin!(&mut *task).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "what it waits for is there");
        if wakes.get() == before {
            return polls;
        }
    }
    limit
}

/// A waker that panics when it is called, and notes the call.
#[derive(Default)]
pub(crate) struct Panics(AtomicBool);

impl Panics {
    pub(crate) fn was_called(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
        panic!("planted: a waker panics");
    }
}

/// Notes that it was called, and wakes the thread that waits for that.
struct Woken {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn sleep_on(node: &Node) {
    let fd = node.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    // The task's own deadline notices a missing event.
    let moment = Timespec::try_from(Duration::from_secs(1)).expect("a second");
    match poll(&mut fds, Some(&moment)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => panic!("waiting on the node's descriptor: {error}"),
    }
}

/// Returns the runtime that drives the nodes of a process under `Driver::Tasks`; the calling thread
/// creates them in it. When it is dropped, it closes nodes that were dropped without being closed.
pub(crate) fn runtime_for(driver: Driver) -> Option<Runtime> {
    if driver != Driver::Tasks {
        return None;
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let handle = Box::leak(Box::new(runtime.handle().clone()));
    // The runtime stays entered until the process ends.
    mem::forget(handle.enter());
    Some(runtime)
}
