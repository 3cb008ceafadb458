//! Work of handshakes that runs off the turn: all use of RDMA devices.
//!
//! Rules:
//!
//! - Opening a device, registering memory and connecting a queue pair take milliseconds, for which
//!   no other session shall wait. They run one after the other on a thread that exists while there
//!   is something to do. A node's acceptor and its dialer share it.
//! - An eventfd in the epoll set of an acceptor or dialer tells of results, and its turn takes them.
//!   It may tell of other things too, so only its owner silences it, before it looks at any of them.
//! - A result for a handshake that has ended meanwhile is dropped, and its queue pair with it.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{fmt, io, mem};

use ibex_base::threads;

use super::event_fd::EventFd;
use crate::fabric::VerbsDevice;
use crate::local::Local;
use crate::message::VerbsEndpoint;
use crate::verbs::{PairRequest, VerbsDevices, VerbsPair};

/// A piece of work for a handshake.
pub(super) enum DeviceJob {
    /// Asks which device the handshake is to offer.
    Find(IpAddr),
    /// Makes a queue pair for a session.
    Prepare(PairRequest),
    /// Connects that queue pair with the peer's.
    Connect(Box<dyn VerbsPair>, Box<VerbsEndpoint>),
}

/// The result of a job.
pub(super) enum DeviceOutcome {
    /// The device, or the reason why there is none.
    Found(Result<VerbsDevice, String>),
    /// The queue pair, or the reason why there is none.
    Prepared(Result<Box<dyn VerbsPair>, String>),
    /// The same queue pair, connected, or the reason why it is not.
    Connected(Result<Box<dyn VerbsPair>, String>),
}

/// The thread on which a node uses its RDMA devices. Clones share it.
///
/// The thread exists while there is something to do.
#[derive(Clone, Default)]
pub struct DeviceThread(Arc<DeviceQueue>);

#[derive(Default)]
struct DeviceQueue {
    state: Mutex<State>,
    /// Told when a job is done.
    is_done: Condvar,
}

#[derive(Default)]
struct State {
    to_do: VecDeque<QueuedJob>,
    /// The results of those whose job is under way.
    serves: Option<Arc<DeviceResults>>,
    /// True if the thread will look at `to_do` again.
    at_work: bool,
    /// Set once the log was told that there can be no thread.
    has_warned: bool,
}

struct QueuedJob {
    results: Arc<DeviceResults>,
    key: u64,
    devices: Arc<dyn VerbsDevices>,
    job: DeviceJob,
}

/// The device jobs of one acceptor or dialer, each under the key of its handshake.
pub(super) struct DeviceJobs {
    thread: DeviceThread,
    results: Arc<DeviceResults>,
}

/// The place where the thread leaves results.
struct DeviceResults {
    done: Mutex<Vec<(u64, DeviceOutcome)>>,
    /// Rung when something is in `done`.
    bell: Arc<EventFd>,
}

impl DeviceJob {
    /// Runs the job, which may take its time.
    pub(super) fn run(self, devices: &dyn VerbsDevices) -> DeviceOutcome {
        match self {
            DeviceJob::Find(local) => DeviceOutcome::Found(devices.device(local)),
            DeviceJob::Prepare(wanted) => DeviceOutcome::Prepared(devices.prepare(&wanted)),
            DeviceJob::Connect(mut pair, theirs) => {
                DeviceOutcome::Connected(pair.connect(&theirs).map(|()| pair))
            }
        }
    }
}

impl DeviceJobs {
    /// Has a bell of its own.
    pub(super) fn new(local: &Local) -> io::Result<DeviceJobs> {
        Ok(DeviceJobs::ringing(local, Arc::new(EventFd::new()?)))
    }

    /// Rings `bell` for each result.
    pub(super) fn ringing(local: &Local, bell: Arc<EventFd>) -> DeviceJobs {
        let done = Mutex::default();
        DeviceJobs {
            thread: local.device_thread.clone(),
            results: Arc::new(DeviceResults { done, bell }),
        }
    }

    /// Rung when [`take_done`](Self::take_done) has something. Silence it before that call.
    pub(super) fn bell(&self) -> &EventFd {
        &self.results.bell
    }

    /// Begins `job` for the handshake `key`, on the node's thread for it. If no thread can be
    /// started, the job runs at once, and everything waits.
    pub(super) fn begin(&self, key: u64, devices: &Arc<dyn VerbsDevices>, job: DeviceJob) {
        let shared = &self.thread.0;
        let mut state = lock(&shared.state);
        state.to_do.push_back(QueuedJob {
            results: self.results.clone(),
            key,
            devices: devices.clone(),
            job,
        });
        if state.at_work {
            return;
        }
        state.at_work = true;
        drop(state);
        let working = shared.clone();
        if let Err(error) = threads::spawn("ibex-rdma", move || working.work()) {
            // Each handshake fails to start a thread again; the log is told once.
            if !mem::replace(&mut lock(&shared.state).has_warned, true) {
                ibex_base::warn_limited!(
                    error,
                    %error,
                    "no thread for RDMA devices: queue pairs are made where the engine runs, and \
                     everything waits for it"
                );
            }
            shared.work();
        }
    }

    /// Takes the results since the last call, with their keys.
    pub(super) fn take_done(&self) -> Vec<(u64, DeviceOutcome)> {
        mem::take(&mut lock(&self.results.done))
    }
}

impl Drop for DeviceJobs {
    /// Waits for the job that is under way, so that no device is in use afterwards.
    fn drop(&mut self) {
        let is_ours = |results: &Arc<DeviceResults>| Arc::ptr_eq(results, &self.results);
        let shared = &self.thread.0;
        let mut state = lock(&shared.state);
        let jobs = mem::take(&mut state.to_do).into_iter();
        let (given_up, others): (VecDeque<QueuedJob>, VecDeque<QueuedJob>) =
            jobs.partition(|job| is_ours(&job.results));
        state.to_do = others;
        while state.serves.as_ref().is_some_and(is_ours) {
            let waited = shared.is_done.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // Queue pairs among them are destroyed without the lock.
        drop(given_up);
    }
}

impl DeviceQueue {
    /// Runs all device jobs that are waiting.
    fn work(&self) {
        loop {
            let mut state = lock(&self.state);
            let Some(job) = state.to_do.pop_front() else {
                state.at_work = false;
                return;
            };
            state.serves = Some(job.results.clone());
            drop(state);
            let QueuedJob {
                results,
                key,
                devices,
                job,
            } = job;
            // The panic of an implementation is logged already. The handshake ends by its deadline,
            // and the others continue.
            if let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| job.run(&*devices))) {
                lock(&results.done).push((key, outcome));
                results.bell.ring();
            }
            lock(&self.state).serves = None;
            self.is_done.notify_all();
        }
    }
}

impl fmt::Debug for DeviceThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceThread")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::NodeIdentity;
    use crate::negotiate::Party;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Devices that panic when asked from the loopback address, and are none for others.
    #[derive(Debug)]
    struct Moody;

    impl VerbsDevices for Moody {
        fn device(&self, local: IpAddr) -> Result<VerbsDevice, String> {
            assert!(!local.is_loopback(), "on purpose");
            Err(format!("not from {local}"))
        }

        fn prepare(&self, _: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
            Err("there is no device".to_string())
        }
    }

    fn done_next(device_jobs: &DeviceJobs) -> Vec<(u64, DeviceOutcome)> {
        let mut bell = [PollFd::new(device_jobs.bell(), PollFlags::IN)];
        poll(&mut bell, None).unwrap();
        device_jobs.bell().silence();
        device_jobs.take_done()
    }

    #[test]
    fn taking_results_leaves_a_shared_bell_rung() {
        let local = Local::new(NodeIdentity([1; 16]), 1);
        let bell = Arc::new(EventFd::new().unwrap());
        let device_jobs = DeviceJobs::ringing(&local, bell.clone());
        // Somebody else has left something, for which the owner of the bell has not looked yet.
        bell.ring();
        assert!(device_jobs.take_done().is_empty());
        let mut shared = [PollFd::new(&*bell, PollFlags::IN)];
        assert_eq!(poll(&mut shared, Some(&Timespec::default())).unwrap(), 1);
    }

    #[test]
    fn results_come_in_order_under_their_keys_and_a_panic_takes_no_other_with_it() {
        let local = Local::new(NodeIdentity([1; 16]), 1);
        let device_jobs = DeviceJobs::new(&local).unwrap();
        let devices: Arc<dyn VerbsDevices> = Arc::new(Moody);
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        // The later rounds begin after the thread has ended.
        for round in 0..3 {
            device_jobs.begin(round * 3, &devices, DeviceJob::Find(elsewhere));
            device_jobs.begin(
                round * 3 + 1,
                &devices,
                DeviceJob::Find([127, 0, 0, 1].into()),
            );
            device_jobs.begin(
                round * 3 + 2,
                &devices,
                DeviceJob::Prepare(PairRequest {
                    local: elsewhere,
                    peer: (elsewhere, 7000).into(),
                    offered: None,
                    end: Party::Acceptor,
                    resumes: None,
                }),
            );
            let mut done = Vec::new();
            while done.len() < 2 {
                done.extend(done_next(&device_jobs));
            }
            let [
                (first, DeviceOutcome::Found(found)),
                (last, DeviceOutcome::Prepared(prepared)),
            ] = &done[..]
            else {
                panic!("other outcomes, or others in number");
            };
            assert_eq!((*first, *last), (round * 3, round * 3 + 2));
            assert_eq!(*found, Err("not from 192.0.2.1".to_string()));
            assert!(prepared.is_err());
            assert!(device_jobs.take_done().is_empty());
            assert!(lock(&device_jobs.thread.0.state).to_do.is_empty());
        }
    }
}
