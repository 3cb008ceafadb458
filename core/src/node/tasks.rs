//! The tasks that drive a node under [`Driver::Tasks`](crate::Driver::Tasks): two for each of its engines.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ibex_transport::runtime::{EventLoop, Rearm, Runtime, Step, Steps};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{Handle, RuntimeFlavor},
    task::{self, AbortHandle, yield_now},
};

/// Starts the tasks in the runtime of `handle`, whose reactor watches the sessions' connections, and
/// the engines' epoll sets for everything else.
///
/// A node that loses its tasks, because their runtime is shut down, is closed, waiting for up to
/// `linger`.
///
/// # Errors
///
/// The errors of the reactor's `epoll_ctl`.
pub(crate) fn spawn(runtime: &Arc<Runtime>, handle: &Handle, linger: Duration) -> io::Result<()> {
    if shares_one_thread(handle) {
        runtime.ask_for_held_tasks(holds_up_tasks);
        // The future that `block_on` runs is no task. It may block before any task has run.
        if task::try_id().is_none() {
            RUNS_TASKS.set(true);
        }
    }
    for event_loop in runtime.event_loops() {
        spawn_for(event_loop, runtime, handle, linger)?;
    }
    Ok(())
}

fn spawn_for(
    event_loop: &Arc<EventLoop>,
    runtime: &Arc<Runtime>,
    handle: &Handle,
    linger: Duration,
) -> io::Result<()> {
    let reactor = handle.clone();
    event_loop.watch_by(Box::new(move |connection, waker| {
        watch(&reactor, connection, waker)
    }));
    let _context = handle.enter();
    let set = EngineEpollFd(event_loop.epoll());
    // SAFETY: the descriptor is open, and the same, for as long as `set` lives, and `AsyncFd` keeps
    // that until it has deregistered it.
    let descriptor = unsafe { AsyncFd::register_with_interest(set, Interest::READABLE) }?;
    let flushing = {
        let event_loop = event_loop.clone();
        handle.spawn(async move {
            while poll_fn(|context| event_loop.poll_published(context.waker())).await {
                // The tasks that are ready run first, so that what they publish leaves as well.
                yield_now().await;
                event_loop.flush();
            }
        })
    };
    let mut driving = DrivingTask {
        event_loop: event_loop.clone(),
        runtime: runtime.clone(),
        descriptor,
        steps: Steps::default(),
        linger,
        flushing: flushing.abort_handle(),
        shares_thread: shares_one_thread(handle),
    };
    handle.spawn(poll_fn(move |context| driving.poll(context)));
    Ok(())
}

/// The task that turns an engine when the reactor has events.
struct DrivingTask {
    event_loop: Arc<EventLoop>,
    runtime: Arc<Runtime>,
    descriptor: AsyncFd<EngineEpollFd>,
    steps: Steps,
    linger: Duration,
    flushing: AbortHandle,
    /// True if all tasks of the runtime share one thread.
    shares_thread: bool,
}

impl DrivingTask {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.shares_thread {
            RUNS_TASKS.set(true);
        }
        // The reactor's readiness is cleared before the engine looks. A descriptor that becomes
        // ready after the poll makes the set ready anew.
        loop {
            match self.descriptor.poll_read_ready(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(mut ready)) => {
                    ready.clear_ready();
                    self.steps.set_is_ready = true;
                }
                // The runtime is being shut down.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
            }
        }
        for _ in 0..STEPS {
            match self.event_loop.step(&mut self.steps, context.waker()) {
                Step::Moved => {}
                Step::Parked => return Poll::Pending,
                Step::Over => return Poll::Ready(()),
            }
        }
        // More steps follow, but the tasks that were woken run first. So does a reactor that has no
        // thread but this one: other sessions come before the next share of a busy one.
        match self.shares_thread {
            true => pin!(yield_now()).poll(context),
            false => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for DrivingTask {
    fn drop(&mut self) {
        self.flushing.abort();
        self.runtime.driver_left(self.linger);
    }
}

thread_local! {
    /// True if this thread has run tasks of a current-thread runtime that drives a node. Threads
    /// that `spawn_blocking` uses never have.
    static RUNS_TASKS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether all tasks of the runtime share one thread.
fn shares_one_thread(handle: &Handle) -> bool {
    handle.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Returns whether a blocking call on this thread holds up all tasks of a runtime.
fn holds_up_tasks() -> bool {
    RUNS_TASKS.get() && Handle::try_current().is_ok_and(|handle| shares_one_thread(&handle))
}

/// Limit of the steps in one poll. Usually the second step finds nothing, and parks. A task that
/// yields makes a multi-thread runtime wake another of its threads.
const STEPS: u32 = 2;

/// Has the reactor of a tokio runtime watch a connection.
fn watch(runtime: &Handle, connection: BorrowedFd<'_>, waker: Waker) -> io::Result<Rearm> {
    let _context = runtime.enter();
    let interest = Interest::READABLE | Interest::WRITABLE;
    let connection = connection.as_raw_fd();
    // SAFETY: the descriptor stays open and the same until the watch is dropped, as `Watcher` says,
    // and `AsyncFd` deregisters it when that happens.
    let descriptor = unsafe { AsyncFd::register_with_interest(connection, interest) }?;
    Ok(Box::new(move |writable| {
        let context = &mut Context::from_waker(&waker);
        // A direction that has ended stays ready.
        let mut has_ended = false;
        while !has_ended && let Poll::Ready(Ok(mut guard)) = descriptor.poll_read_ready(context) {
            has_ended = guard.ready().is_read_closed();
            guard.clear_ready();
        }
        let mut is_shut = !writable;
        while !is_shut && let Poll::Ready(Ok(mut guard)) = descriptor.poll_write_ready(context) {
            is_shut = guard.ready().is_write_closed();
            guard.clear_ready();
        }
        has_ended
    }))
}

/// An engine's epoll set, which the reactor watches.
struct EngineEpollFd(Arc<OwnedFd>);

impl AsRawFd for EngineEpollFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;
    use crate::{Driver, Node};

    fn node() -> Node {
        let node = Node::builder().driver(Driver::Tasks).build();
        node.expect("a node")
    }

    #[test]
    fn only_the_thread_that_runs_the_tasks_holds_them_up() {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            assert!(!holds_up_tasks(), "no node has tasks here");
            let node = node();
            assert!(holds_up_tasks(), "before any task has run");
            let blocking = task::spawn_blocking(|| (node, holds_up_tasks()));
            let (_node, holds_up) = blocking.await.expect("no panic");
            assert!(!holds_up, "another thread blocks");
            let of_task = task::spawn(async { holds_up_tasks() });
            assert!(of_task.await.expect("no panic"));
        });
        assert!(!holds_up_tasks(), "no task could run here meanwhile");
    }

    #[test]
    fn a_thread_beside_others_holds_nobody_up() {
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let _node = node();
            let of_task = task::spawn(async { holds_up_tasks() });
            assert!(!of_task.await.expect("no panic") && !holds_up_tasks());
        });
    }
}
