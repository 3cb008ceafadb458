//! The control thread: a thread of the node for work that takes too long for a turn.
//!
//! Mapping and populating the memory of a large message takes milliseconds, and no other session
//! may wait for that. The thread is started when it is first needed, does one job after the other,
//! and ends with its node.
#![forbid(unsafe_code)]

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        atomic::Ordering,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

use ibex_base::{
    sync::{AtomicBool, Mutex, lock},
    threads,
};

/// A job to do outside the turn.
type Job = Box<dyn FnOnce() + Send>;

/// A node's control thread, which may not have been started.
#[derive(Debug, Default)]
pub(crate) struct ControlThread {
    state: Mutex<State>,
    /// Set once the log has reported that the thread cannot be started, because each long message
    /// tries again.
    has_warned: AtomicBool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    NotStarted,
    Running {
        jobs: Sender<Job>,
        thread: JoinHandle<()>,
    },
    Stopped,
}

impl ControlThread {
    /// Has `job` done. If the thread cannot be started, the caller does it, slowly. Once the node
    /// is closed, the job is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(job) = self.queue(Box::new(job)) {
            job();
        }
    }

    /// Queues the job, or gives it back if there is no thread for it.
    fn queue(&self, job: Job) -> Option<Job> {
        let mut state = lock(&self.state);
        if let State::NotStarted = *state {
            match State::start() {
                Ok(running) => *state = running,
                Err(error) => {
                    if !self.has_warned.swap(true, Ordering::Relaxed) {
                        ibex_base::warn_limited!(
                            error,
                            %error,
                            "no control thread: a large message's memory is mapped where the \
                             engine runs, and everything waits for it"
                        );
                    }
                    return Some(job);
                }
            }
        }
        if let State::Running { jobs, .. } = &*state {
            // The thread takes jobs for as long as `jobs` exists.
            let _ = jobs.send(job);
        }
        None
    }

    /// Ends the thread after it has done the queued jobs. Waits for its end, unless it is the
    /// calling thread.
    pub(crate) fn stop(&self) {
        let state = mem::replace(&mut *lock(&self.state), State::Stopped);
        if let State::Running { jobs, thread } = state {
            drop(jobs);
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl State {
    fn start() -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let thread = threads::spawn("ibex-control", move || {
            for job in queue {
                // A job may run wakers, which are foreign code. The panic hook has reported a
                // panic already, and it must not stop the next jobs.
                let _ = panic::catch_unwind(AssertUnwindSafe(job));
            }
        })?;
        Ok(State::Running { jobs, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc::sync_channel};

    #[test]
    fn one_thread_does_all_jobs_in_order() {
        let control = ControlThread::default();
        assert!(matches!(*lock(&control.state), State::NotStarted));
        let (done, results) = channel();
        for job in 0..100 {
            let done = done.clone();
            control.run(move || done.send((job, thread::current().id())).unwrap());
        }
        control.stop();
        drop(done);
        let results: Vec<_> = results.into_iter().collect();
        assert!(results.iter().map(|(job, _)| *job).eq(0..100));
        let (_, thread) = results[0];
        assert_ne!(thread, thread::current().id());
        assert!(results.iter().all(|(_, other)| *other == thread));
    }

    #[test]
    fn a_stopped_control_thread_runs_no_further_job() {
        let control = ControlThread::default();
        control.stop();
        control.run(|| panic!("the node is closed"));
        assert!(matches!(*lock(&control.state), State::Stopped));
    }

    #[test]
    fn a_job_may_stop_the_thread_that_does_it() {
        let control = Arc::new(ControlThread::default());
        let (done, finished) = sync_channel(0);
        let inside = control.clone();
        control.run(move || {
            inside.stop();
            done.send(()).unwrap();
        });
        finished.recv().unwrap();
        control.stop();
    }

    #[test]
    fn a_job_that_panics_takes_no_other_with_it() {
        let control = ControlThread::default();
        control.run(|| panic!("on purpose"));
        let (done, finished) = sync_channel(0);
        control.run(move || done.send(()).unwrap());
        finished.recv().unwrap();
        control.stop();
    }
}
