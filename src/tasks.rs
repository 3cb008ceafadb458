//! The tasks that drive a node under [`Driver::Tasks`](crate::Driver::Tasks): two for each of its engines.

use std::{
    future::poll_fn,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ibex_transport::runtime::{EventLoop, Runtime, Step};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    task::AbortHandle,
};

/// Starts the tasks in the runtime of `handle`, whose reactor watches the engines' epoll sets.
///
/// A node that loses its tasks, because their runtime is shut down, is closed, waiting for up to
/// `linger`.
///
/// # Errors
///
/// The errors of the reactor's `epoll_ctl`.
pub(crate) fn spawn(runtime: &Arc<Runtime>, handle: &Handle, linger: Duration) -> io::Result<()> {
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
    let _context = handle.enter();
    let set = EpollSet(event_loop.epoll());
    // SAFETY: the descriptor is open, and the same, for as long as `set` lives, and `AsyncFd` keeps
    // that until it has deregistered it.
    let descriptor = unsafe { AsyncFd::register_with_interest(set, Interest::READABLE) }?;
    let flushing = {
        let event_loop = event_loop.clone();
        handle.spawn(poll_fn(move |context| {
            event_loop.poll_flushing(context.waker())
        }))
    };
    let driving = Driving {
        event_loop: event_loop.clone(),
        runtime: runtime.clone(),
        descriptor,
        linger,
        flushing: flushing.abort_handle(),
    };
    handle.spawn(poll_fn(move |context| driving.poll(context)));
    Ok(())
}

/// The task that turns an engine when the reactor has news.
struct Driving {
    event_loop: Arc<EventLoop>,
    runtime: Arc<Runtime>,
    descriptor: AsyncFd<EpollSet>,
    linger: Duration,
    flushing: AbortHandle,
}

impl Driving {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        // The reactor's readiness is cleared before the engine looks. A descriptor that becomes
        // ready after the look makes the set ready anew.
        loop {
            match self.descriptor.poll_read_ready(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                // The runtime is being shut down.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
            }
        }
        for _ in 0..STEPS {
            match self.event_loop.step() {
                Step::Moved => {}
                Step::Parked => return Poll::Pending,
                Step::Over => return Poll::Ready(()),
            }
        }
        // More steps follow, but the tasks that were woken run first.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        self.flushing.abort();
        self.runtime.driver_left(self.linger);
    }
}

/// Limit of the steps in one poll. Usually the second step finds nothing and parks. A task that
/// yields instead makes a multi-thread runtime wake another of its threads.
const STEPS: u32 = 2;

/// An engine's epoll set, which the reactor watches.
struct EpollSet(Arc<OwnedFd>);

impl AsRawFd for EpollSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
