//! The control thread: a thread of the node's own for work that takes too long for a turn.
//!
//! Mapping and populating the memory of a large message takes milliseconds, for which no
//! other session shall wait. The thread is started when it is first needed, does one job
//! after the other, and ends with its node.
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

use ibex_base::sync::{AtomicBool, Mutex, lock};

/// Something to do off the turn.
type Job = Box<dyn FnOnce() + Send>;

/// A node's control thread, once there is one.
#[derive(Debug, Default)]
pub(crate) struct ControlThread {
    state: Mutex<State>,
    /// Set once the log was told that there can be no thread: each long message finds it out anew.
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
    /// Has `job` done. Where there can be no thread the caller does it, slowly; once the
    /// node is closed nobody does.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(job) = self.queue(Box::new(job)) {
            job();
        }
    }

    /// Gives the job back if there is no thread for it.
    fn queue(&self, job: Job) -> Option<Job> {
        let mut state = lock(&self.state);
        if let State::NotStarted = *state {
            match State::start() {
                Ok(running) => *state = running,
                Err(error) => {
                    if !self.has_warned.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
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
            // The thread listens for as long as `jobs` is there.
            let _ = jobs.send(job);
        }
        None
    }

    /// Ends the thread when it has done what is queued, and waits for that, unless it is
    /// the one that calls.
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
        let thread = thread::Builder::new()
            .name("ibex-control".to_owned())
            .spawn(move || {
                for job in queue {
                    // Wakers run in it, which are foreign. One that panics has said so,
                    // and those who wait for the next job are not to blame.
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
    fn what_comes_after_the_end_is_not_done() {
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
