//! Work of handshakes that runs off the turn: all use of RDMA devices.
//!
//! Rules:
//!
//! - Opening a device, registering memory and connecting a queue pair take milliseconds, for which
//!   no other session shall wait. They run one after the other on a thread that the acceptors and
//!   the dialer of a node share ([`Workers`]).
//! - An eventfd in the epoll set of an acceptor or dialer tells of results, and its turn takes them.
//!   It may tell of other things too, so only its owner silences it, before it looks at any of them.
//! - A result for a handshake that has ended meanwhile is dropped, and its queue pair with it.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, unbounded};
use ibex_base::Workers;
use ibex_base::sync::lock;

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

struct QueuedJob {
    key: u64,
    devices: Arc<dyn VerbsDevices>,
    job: DeviceJob,
}

/// The device jobs of one acceptor or dialer, each under the key of its handshake.
pub(super) struct DeviceJobs {
    thread: Arc<Workers>,
    jobs: Sender<QueuedJob>,
    results: Receiver<(u64, DeviceOutcome)>,
    queue: Arc<DeviceQueue>,
}

/// The ends of both channels that the thread has.
struct DeviceQueue {
    to_do: Receiver<QueuedJob>,
    done: Sender<(u64, DeviceOutcome)>,
    /// Rung when something is in `done`.
    bell: Arc<EventFd>,
    /// Held while a job is under way.
    at_work: Mutex<()>,
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
        let (jobs, to_do) = unbounded();
        let (done, results) = unbounded();
        DeviceJobs {
            thread: local.device_thread.clone(),
            jobs,
            results,
            queue: Arc::new(DeviceQueue {
                to_do,
                done,
                bell,
                at_work: Mutex::default(),
            }),
        }
    }

    /// Rung when [`take_done`](Self::take_done) has something. Silence it before that call.
    pub(super) fn bell(&self) -> &EventFd {
        &self.queue.bell
    }

    /// Begins `job` for the handshake `key`, on the node's thread for it. If no thread can be
    /// started, the job runs at once, and everything waits.
    pub(super) fn begin(&self, key: u64, devices: &Arc<dyn VerbsDevices>, job: DeviceJob) {
        let devices = devices.clone();
        let _ = self.jobs.send(QueuedJob { key, devices, job });
        let queue = self.queue.clone();
        self.thread.give_or_do(
            move || queue.do_next(),
            "no thread for RDMA devices: queue pairs are made where the engine runs, and everything \
             waits for it",
        );
    }

    /// Takes the results since the last call, with their keys.
    pub(super) fn take_done(&self) -> Vec<(u64, DeviceOutcome)> {
        self.results.try_iter().collect()
    }
}

impl Drop for DeviceJobs {
    /// Gives up the jobs that have not begun, and waits for the one that is under way, so that no
    /// device is in use afterwards.
    fn drop(&mut self) {
        self.queue.to_do.try_iter().for_each(drop);
        drop(lock(&self.queue.at_work));
    }
}

impl DeviceQueue {
    /// Does the next job, unless it was given up.
    fn do_next(&self) {
        // Locked before the job is taken: who gives up the others then waits for this one.
        let _at_work = lock(&self.at_work);
        let Ok(QueuedJob { key, devices, job }) = self.to_do.try_recv() else {
            return;
        };
        // If an implementation panics, the handshake ends by its deadline.
        let _ = self.done.send((key, job.run(&*devices)));
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::NodeIdentity;
    use crate::party::Party;
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
            assert!(device_jobs.queue.to_do.is_empty());
        }
    }
}
