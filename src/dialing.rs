//! Dialing on threads that may block, for tasks and for sessions.
//!
//! The system's resolver blocks, and so does a handshake. A node has two sets of threads, so that
//! neither waits for the other: up to [`CONNECTING`] connect for tasks, and up to [`RESUMING`] dial
//! for sessions that have lost their connection. A thread ends when there is nothing left to dial.
//!
//! A dropped future, or the end of the node, is noticed within 20 ms. If the peer may have a
//! session already, the dialing thread waits for its answer, for at most `handshake_timeout`, and
//! tells the peer that the session is not taken.

use std::{
    collections::VecDeque,
    future::Future,
    io, mem,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
};

use ibex_base::{fork, sync::lock};
use ibex_transport::engine::Admission;

use crate::{ConnectError, Node, Peer, ToAddress, address};

/// Threads that dial, and their jobs.
#[derive(Clone)]
pub(crate) struct Dialers(Arc<Mutex<Queue>>);

struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    most: usize,
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that connect at a time.
pub(crate) const CONNECTING: usize = 4;
/// Threads that dial for sessions at a time. One of them waits for 3 s if a host says nothing, and
/// further sessions wait for their turn behind it.
pub(crate) const RESUMING: usize = 16;

impl Dialers {
    /// The maximum number of threads.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue {
            jobs: VecDeque::new(),
            threads: 0,
            most,
        })))
    }

    pub(crate) fn run(&self, job: Job) -> io::Result<()> {
        let mut queue = lock(&self.0);
        if queue.threads < queue.most {
            let dialers = self.clone();
            let dialing = thread::Builder::new().name("ibex-dial".to_owned());
            match dialing.spawn(move || dialers.work()) {
                Ok(_) => queue.threads += 1,
                // One of the existing threads runs the job.
                Err(_) if queue.threads > 0 => {}
                Err(error) => return Err(error),
            }
        }
        queue.jobs.push_back(job);
        Ok(())
    }

    fn work(&self) {
        loop {
            let mut queue = lock(&self.0);
            let Some(job) = queue.jobs.pop_front() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            // The job runs wakers, which are foreign code. A waker's panic has been reported
            // already, and it must not affect callers that wait for the next job.
            let _ = panic::catch_unwind(AssertUnwindSafe(job));
        }
    }
}

/// A session on its way. See [`Node::connect_async`].
pub(crate) struct ConnectAsync<'a> {
    node: &'a Node,
    address: String,
    engine: Option<usize>,
    state: State,
}

enum State {
    New,
    Dialing(Arc<Call>),
    Done,
}

/// The state that the future shares with the dialing thread.
#[derive(Default)]
struct Call {
    is_dropped: AtomicBool,
    answer: Mutex<Answer>,
}

#[derive(Default)]
struct Answer {
    outcome: Option<Result<Admission, ConnectError>>,
    waker: Option<Waker>,
}

/// Abandons a session that no caller has taken.
impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(Ok(admission)) = self.outcome.take() {
            admission.abandon();
        }
    }
}

impl Node {
    /// Connects in a task to the node that listens on `address`. Connecting begins with the first
    /// poll.
    ///
    /// Threads of the node resolve names and wait for peers, up to four while tasks connect.
    /// Further calls wait for their turn, which does not count against `connect_timeout`. Dropping
    /// the future ends the attempt: the peer may then have seen a session for a moment.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready.
    pub fn connect_async(
        &self,
        address: impl ToAddress,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        ConnectAsync::new(self, address::text_of(&address), None)
    }

    /// Connects like [`connect_async`](Self::connect_async), and places the session on an engine as
    /// [`connect_on`](Self::connect_on) does.
    ///
    /// # Errors
    ///
    /// The errors of [`connect_on`](Self::connect_on).
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready.
    pub fn connect_on_async(
        &self,
        engine: usize,
        address: impl ToAddress,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        ConnectAsync::new(self, address::text_of(&address), Some(engine))
    }
}

impl<'a> ConnectAsync<'a> {
    fn new(node: &'a Node, address: String, engine: Option<usize>) -> Self {
        Self {
            node,
            address,
            engine,
            state: State::New,
        }
    }

    fn start(&self) -> Result<Arc<Call>, ConnectError> {
        let call = Arc::<Call>::default();
        let address = self.address.clone();
        let dial = self.node.dialing(&address, self.engine)?;
        let job = {
            let call = call.clone();
            Box::new(move || {
                let outcome = dial(&address, &|| call.is_dropped.load(Ordering::Relaxed));
                let mut answer = lock(&call.answer);
                answer.outcome = Some(outcome);
                let waker = answer.waker.take();
                drop(answer);
                if let Some(waker) = waker {
                    waker.wake();
                }
            })
        };
        match self.node.dialers.run(job) {
            Ok(()) => Ok(call),
            Err(error) => Err(ConnectError::environment(&self.address, error)),
        }
    }
}

impl Future for ConnectAsync<'_> {
    type Output = Result<Peer, ConnectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.node.check_fork()?;
        let call = match mem::replace(&mut this.state, State::Done) {
            State::New => this.start()?,
            State::Dialing(call) => call,
            State::Done => panic!("polled after it was ready"),
        };
        let mut answer = lock(&call.answer);
        let Some(outcome) = answer.outcome.take() else {
            answer.waker = Some(context.waker().clone());
            drop(answer);
            this.state = State::Dialing(call);
            return Poll::Pending;
        };
        drop(answer);
        let admission = outcome?;
        Poll::Ready(this.node.admit(&this.address, admission))
    }
}

impl Drop for ConnectAsync<'_> {
    fn drop(&mut self) {
        if fork::is_child() {
            // A forked child does not drop what its parent dialed.
            mem::forget(mem::replace(&mut self.state, State::Done));
        }
        if let State::Dialing(call) = &self.state {
            call.is_dropped.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_job_that_panics_takes_no_thread_with_it() {
        let dialers = Dialers::new(1);
        let (tell, told) = channel();
        dialers
            .run(Box::new(|| panic!("as a waker may")))
            .expect("a thread");
        dialers
            .run(Box::new(move || tell.send(()).expect("it is awaited")))
            .expect("a thread");
        told.recv().expect("the second job is done");
    }
}
