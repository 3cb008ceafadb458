//! Tasks and conditions that a test waits for while it turns a node, which callers may drive.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use ibex::Node;
use ibex_harness::wait_until;

/// Runs a task on this thread, and turns the node if callers drive it.
pub(crate) fn run<F: Future>(node: &Node, task: F) -> F::Output {
    run_with(node, &waker(), task)
}

/// Runs a task as [`run`] does, with a waker that unparks this thread.
pub(crate) fn run_with<F: Future>(node: &Node, waker: &Waker, task: F) -> F::Output {
    let mut task = pin!(task);
    let mut context = Context::from_waker(waker);
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
            return output;
        }
        // A node with a thread of its own has little to do here; others depend on it.
        if !node.poll() {
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// Turns the node until the condition holds.
#[track_caller]
pub(crate) fn until(node: &Node, mut is_so: impl FnMut() -> bool) {
    wait_until(|| {
        while !is_so() {
            if !node.poll() {
                return false;
            }
        }
        true
    });
}

/// Returns a waker that unparks this thread.
pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
