//! Threads for work that takes too long for a turn of an engine.
//!
//! Rules:
//! 1. Jobs begin in the order in which they are given. Each thread does one at a time.
//! 2. There are as many threads as unfinished jobs, up to the most. A thread that has had nothing
//!    to do for [`IDLE`] ends, unless there is a job for it: it looks under the lock under which
//!    jobs are counted, so no job is left without a thread.
//! 3. The threads end when no job can come any more.
#![forbid(unsafe_code)]

use std::{
    fmt, io, mem,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::{fork, threads};

/// A piece of work for a thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Up to a number of threads that do jobs. Threads are made when there is something to do.
///
/// A panic in a job ends neither the thread nor other jobs. Dropping the value ends the threads
/// after the jobs that were given, and does not wait for that; [`stop`](Self::stop) does.
pub struct Workers {
    name: &'static str,
    most: usize,
    /// The end of the channel from which threads take jobs.
    queue: Receiver<Job>,
    state: Arc<Mutex<State>>,
}

struct State {
    /// `None` once no job is taken any more.
    jobs: Option<Sender<Job>>,
    /// The jobs that wait or are under way.
    unfinished: usize,
    threads: Vec<JoinHandle<()>>,
}

/// A job that was not taken, because there is no thread and none can be made.
pub struct NoThread {
    /// The job.
    pub job: Job,
    /// The system's error, with the limits to raise.
    pub error: io::Error,
}

impl Workers {
    /// Makes no thread yet. There will be up to `most`, each with this name.
    #[must_use]
    pub fn new(name: &'static str, most: usize) -> Self {
        let (jobs, queue) = unbounded();
        Self {
            name,
            most,
            queue,
            state: Arc::new(Mutex::new(State {
                jobs: Some(jobs),
                unfinished: 0,
                threads: Vec::new(),
            })),
        }
    }

    /// Has a thread do `job`. Once the workers are stopped, the job is dropped. Never blocks.
    ///
    /// # Errors
    ///
    /// There is no thread, and none can be made. The error has the job.
    pub fn give(&self, job: impl FnOnce() + Send + 'static) -> Result<(), NoThread> {
        self.queue(Box::new(job), true)
    }

    /// As [`give`](Self::give), but the calling thread does the job if there can be no thread. The
    /// log is told so by `warning`.
    pub fn give_or_do(&self, job: impl FnOnce() + Send + 'static, warning: &str) {
        if let Err(NoThread { job, error }) = self.give(job) {
            self.warn(&error, warning);
            do_job(job);
        }
    }

    /// As [`give`](Self::give), but the job waits for a later call if there can be no thread. The
    /// log is told so by `warning`.
    pub fn give_or_leave(&self, job: impl FnOnce() + Send + 'static, warning: &str) {
        if let Err(NoThread { job, error }) = self.give(job) {
            self.warn(&error, warning);
            let _ = self.queue(job, false);
        }
    }

    /// Returns the number of jobs that have not begun.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes no job from now on, and waits until those that were given are done and the threads
    /// have ended. A job may call it too: its own thread is not waited for.
    pub fn stop(&self) {
        let threads = {
            let mut state = lock(&self.state);
            state.jobs = None;
            mem::take(&mut state.threads)
        };
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// Queues a job. Where `needs_thread`, makes sure that a thread will do it.
    fn queue(&self, job: Job, needs_thread: bool) -> Result<(), NoThread> {
        let mut state = lock(&self.state);
        let Some(jobs) = state.jobs.clone() else {
            return Ok(());
        };
        let threads = state.threads.len();
        if needs_thread && state.unfinished >= threads && threads < self.most {
            let (queue, shared) = (self.queue.clone(), self.state.clone());
            match threads::spawn(self.name, move || work(&queue, &shared)) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if threads == 0 => return Err(NoThread { job, error }),
                // The present threads do it.
                Err(_) => {}
            }
        }
        state.unfinished += 1;
        // `self` has the channel's other end, so it is open.
        let _ = jobs.send(job);
        Ok(())
    }

    fn warn(&self, error: &io::Error, warning: &str) {
        crate::warn_limited!(error, %error, "{warning}");
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A child of a fork has no threads, and any lock may be held in it for ever.
        if !fork::is_child() {
            lock(&self.state).jobs = None;
        }
    }
}

/// Does jobs for as long as there are any.
fn work(queue: &Receiver<Job>, state: &Mutex<State>) {
    loop {
        match queue.recv_timeout(IDLE) {
            Ok(job) => {
                do_job(job);
                lock(state).unfinished -= 1;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let mut state = lock(state);
                if state.unfinished < state.threads.len() {
                    let this = thread::current().id();
                    state.threads.retain(|thread| thread.thread().id() != this);
                    return;
                }
            }
        }
    }
}

/// Does a job, which may run foreign code. The panic hook has reported a panic already.
fn do_job(job: Job) {
    let _ = panic::catch_unwind(AssertUnwindSafe(job));
}

/// Locks the state, which is whole after each step.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workers").field(&self.name).finish()
    }
}

impl fmt::Debug for NoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Time after which a thread without a job ends.
const IDLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    fn threads_of(workers: &Workers) -> usize {
        lock(&workers.state).threads.len()
    }

    #[test]
    fn one_thread_does_all_jobs_in_order() {
        let workers = Workers::new("ibex-test", 1);
        assert_eq!(threads_of(&workers), 0);
        let (done, results) = unbounded();
        for job in 0..100 {
            let done = done.clone();
            let give = move || done.send((job, thread::current().id())).unwrap();
            workers.give(give).unwrap();
        }
        workers.stop();
        drop(done);
        let results: Vec<_> = results.into_iter().collect();
        assert!(results.iter().map(|(job, _)| *job).eq(0..100));
        let (_, thread) = results[0];
        assert_ne!(thread, thread::current().id());
        assert!(results.iter().all(|(_, other)| *other == thread));
    }

    /// Each of these jobs waits for another, so they need threads of their own.
    #[test]
    fn jobs_have_as_many_threads_as_there_may_be() {
        let workers = Workers::new("ibex-test", 3);
        let (meet, met) = bounded(0);
        let (done, finished) = unbounded();
        for job in 0..3 {
            let (meet, met, done) = (meet.clone(), met.clone(), done.clone());
            let give = move || {
                match job {
                    0 => (0..2).for_each(|_| met.recv().unwrap()),
                    _ => meet.send(()).unwrap(),
                }
                done.send(thread::current().id()).unwrap();
            };
            workers.give(give).unwrap();
        }
        let mut threads: Vec<_> = finished.iter().take(3).collect();
        threads.dedup();
        assert_eq!(threads.len(), 3);
        assert_eq!(threads_of(&workers), 3);
        workers.stop();
    }

    #[test]
    fn a_thread_without_a_job_ends_and_a_later_job_has_one_again() {
        let workers = Workers::new("ibex-test", 1);
        for _ in 0..2 {
            let (done, finished) = bounded(1);
            workers.give(move || done.send(()).unwrap()).unwrap();
            finished.recv().unwrap();
            while threads_of(&workers) > 0 {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn stopped_workers_do_no_further_job() {
        let workers = Workers::new("ibex-test", 1);
        workers.stop();
        workers.give(|| panic!("they are stopped")).unwrap();
        assert_eq!((threads_of(&workers), workers.waiting()), (0, 0));
    }

    #[test]
    fn a_job_may_stop_the_workers() {
        let workers = Arc::new(Workers::new("ibex-test", 1));
        let (done, finished) = bounded(0);
        let inside = workers.clone();
        let stop = move || {
            inside.stop();
            done.send(()).unwrap();
        };
        workers.give(stop).unwrap();
        finished.recv().unwrap();
        workers.stop();
    }

    #[test]
    fn a_job_that_panics_takes_no_other_with_it() {
        let workers = Workers::new("ibex-test", 1);
        workers.give(|| panic!("on purpose")).unwrap();
        let (done, finished) = bounded(0);
        workers.give(move || done.send(()).unwrap()).unwrap();
        finished.recv().unwrap();
        workers.stop();
    }

    #[test]
    fn a_job_that_was_left_is_done_with_the_next() {
        let workers = Workers::new("ibex-test", 1);
        let (done, finished) = bounded(2);
        let other = done.clone();
        // As after no thread could be made.
        let _ = workers.queue(Box::new(move || other.send(1).unwrap()), false);
        assert_eq!((threads_of(&workers), workers.waiting()), (0, 1));
        workers.give(move || done.send(2).unwrap()).unwrap();
        assert_eq!(finished.iter().collect::<Vec<_>>(), [1, 2]);
    }
}
