//! Work that an engine's own thread does between two turns.
//!
//! Memory belongs to the NUMA node of the processor that touches it first. So where each engine has
//! a thread of its own, that thread makes the memory that only it will use. Other threads leave
//! work in a channel and wait for it. Such a thread must hold neither the engine's lock nor anything
//! that a turn waits for.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::OnceLock,
    thread::{self, ThreadId},
};

use core_affinity::CoreId;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use ibex_base::Job;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Runtime;

/// The way to an engine's own thread.
#[derive(Default)]
pub(super) struct OwnThread {
    /// Set once the thread runs.
    id: OnceLock<ThreadId>,
    /// Set before the thread is made.
    jobs: OnceLock<Sender<Job>>,
}

impl Runtime {
    /// Runs `work` on the thread of an engine, between two turns, and waits for the result. The
    /// calling thread runs it where engines have no threads, or where the node has one engine and
    /// no cores were chosen for it. `None` if the node is closed.
    ///
    /// The engine's thread first moves to those cores `near` the memory's device that it may use,
    /// unless the program chose its cores.
    pub fn on_engine_thread<T: Send + 'static>(
        &self,
        engine: usize,
        near: Vec<usize>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let event_loop = &self.event_loops()[engine];
        let is_alone = self.config.engines == 1 && self.config.cores.is_empty();
        if !self.driving.has_thread() || is_alone || event_loop.own_thread.is_current() {
            return Some(work());
        }
        let may_move = self.config.cores.is_empty();
        let summon = || event_loop.summon_keeper();
        event_loop.own_thread.run(summon, move || {
            if may_move && stay_near(&near) {
                tracing::info!(engine, cores = ?near, "the I/O thread stays near its RDMA device");
            }
            work()
        })
    }

    /// Returns whether the calling thread is an engine's own.
    #[must_use]
    pub fn is_engine_thread(&self) -> bool {
        let mut event_loops = self.event_loops().iter();
        event_loops.any(|event_loop| event_loop.own_thread.is_current())
    }
}

impl OwnThread {
    /// Returns whether it is the calling thread.
    fn is_current(&self) -> bool {
        self.id.get() == Some(&thread::current().id())
    }

    /// Makes the channel to the thread, which is made next and keeps this end of it. When that end
    /// is dropped, jobs are refused, and so are those that wait.
    pub(super) fn jobs(&self) -> Receiver<Job> {
        let (jobs, queue) = unbounded();
        let _ = self.jobs.set(jobs);
        queue
    }

    /// Notes that the calling thread is the engine's own.
    pub(super) fn begin(&self) {
        let _ = self.id.set(thread::current().id());
    }

    /// Runs `work` there and returns the result; `None` if the thread has ended. `summon` wakes the
    /// thread.
    fn run<T: Send + 'static>(
        &self,
        summon: impl FnOnce(),
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = bounded(1);
        let job = Box::new(move || {
            let _ = done.send(panic::catch_unwind(AssertUnwindSafe(work)));
        });
        self.jobs.get()?.send(job).ok()?;
        // A thread that has not begun has no waker yet. It takes the jobs when it has one.
        summon();
        match result.recv().ok()? {
            Ok(done) => Some(done),
            Err(panic) => panic::resume_unwind(panic),
        }
    }
}

/// Runs the jobs that other threads have left for the calling thread.
pub(super) fn do_jobs(jobs: &Receiver<Job>) {
    jobs.try_iter().for_each(|job| job());
}

/// Restricts the calling thread to this core. Returns whether the kernel agreed.
pub(super) fn keep_to(core: usize) -> bool {
    core < CpuSet::MAX_CPU && core_affinity::set_for_current(CoreId { id: core })
}

/// Restricts the calling thread to those of its cores that are in `near`. Returns whether it has
/// fewer cores now. Its cores stay as they are if none or all of them are in `near`.
fn stay_near(near: &[usize]) -> bool {
    let Ok(now) = sched_getaffinity(None) else {
        return false;
    };
    let mut fewer = CpuSet::new();
    let known = near.iter().copied().filter(|core| *core < CpuSet::MAX_CPU);
    known
        .filter(|core| now.is_set(*core))
        .for_each(|core| fewer.set(core));
    fewer.count() > 0 && fewer != now && sched_setaffinity(None, &fewer).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores() -> Vec<usize> {
        let set = sched_getaffinity(None).expect("a set");
        (0..CpuSet::MAX_CPU)
            .filter(|core| set.is_set(*core))
            .collect()
    }

    #[test]
    fn a_thread_keeps_to_the_near_cores_that_it_may_use() {
        let far = CpuSet::MAX_CPU - 1;
        let before = cores();
        let last = before[before.len() - 1];
        let stays = thread::spawn(move || {
            assert!(!stay_near(&[]), "no core is known to be near");
            assert!(!stay_near(&[far, far + 1, usize::MAX]), "it may use none");
            assert_eq!(cores(), before);
            assert_eq!(stay_near(&[last, far]), before.len() > 1);
            assert_eq!(cores(), [last]);
            assert!(!stay_near(&before), "it was moved already");
        });
        stays.join().expect("no check fails");
    }
}
