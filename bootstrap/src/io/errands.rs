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

use super::bell::Bell;
use crate::fabric::VerbsDevice;
use crate::local::Local;
use crate::message::VerbsEndpoint;
use crate::verbs::{PairRequest, VerbsDevices, VerbsPair};

/// A piece of work for a handshake.
pub(super) enum Errand {
    /// Asks which device the handshake is to offer.
    Find(IpAddr),
    /// Makes a queue pair for a session.
    Prepare(PairRequest),
    /// Connects that queue pair with the peer's.
    Connect(Box<dyn VerbsPair>, Box<VerbsEndpoint>),
}

/// The result of an errand.
pub(super) enum Outcome {
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
pub struct DeviceThread(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told when an errand is done.
    is_done: Condvar,
}

#[derive(Default)]
struct State {
    to_do: VecDeque<Job>,
    /// The desk whose errand is under way.
    serves: Option<Arc<Desk>>,
    /// True if the thread will look at `to_do` again.
    at_work: bool,
    /// Set once the log was told that there can be no thread.
    has_warned: bool,
}

struct Job {
    desk: Arc<Desk>,
    key: u64,
    devices: Arc<dyn VerbsDevices>,
    errand: Errand,
}

/// The errands of one acceptor or dialer, each under the key of its handshake.
pub(super) struct Errands {
    thread: DeviceThread,
    desk: Arc<Desk>,
}

/// The place where the thread leaves results.
struct Desk {
    done: Mutex<Vec<(u64, Outcome)>>,
    /// Rung when something is in `done`.
    bell: Arc<Bell>,
}

impl Errand {
    /// Runs the errand, which may take its time.
    pub(super) fn run(self, devices: &dyn VerbsDevices) -> Outcome {
        match self {
            Errand::Find(local) => Outcome::Found(devices.device(local)),
            Errand::Prepare(wanted) => Outcome::Prepared(devices.prepare(&wanted)),
            Errand::Connect(mut pair, theirs) => {
                Outcome::Connected(pair.connect(&theirs).map(|()| pair))
            }
        }
    }
}

impl Errands {
    /// Has a bell of its own.
    pub(super) fn new(local: &Local) -> io::Result<Errands> {
        Ok(Errands::ringing(local, Arc::new(Bell::new()?)))
    }

    /// Rings `bell` for each result.
    pub(super) fn ringing(local: &Local, bell: Arc<Bell>) -> Errands {
        let done = Mutex::default();
        Errands {
            thread: local.device_thread.clone(),
            desk: Arc::new(Desk { done, bell }),
        }
    }

    /// Rung when [`take_done`](Self::take_done) has something. Silence it before that call.
    pub(super) fn bell(&self) -> &Bell {
        &self.desk.bell
    }

    /// Begins `errand` for the handshake `key`, on the node's thread for it. If no thread can be
    /// started, the errand runs at once, and everything waits.
    pub(super) fn begin(&self, key: u64, devices: &Arc<dyn VerbsDevices>, errand: Errand) {
        let shared = &self.thread.0;
        let mut state = lock(&shared.state);
        state.to_do.push_back(Job {
            desk: self.desk.clone(),
            key,
            devices: devices.clone(),
            errand,
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
                tracing::warn!(
                    %error,
                    "no thread for RDMA devices: queue pairs are made where the engine runs, and \
                     everything waits for it"
                );
            }
            shared.work();
        }
    }

    /// Takes the results since the last call, with their keys.
    pub(super) fn take_done(&self) -> Vec<(u64, Outcome)> {
        mem::take(&mut lock(&self.desk.done))
    }
}

impl Drop for Errands {
    /// Waits for the errand that is under way, so that no device is in use afterwards.
    fn drop(&mut self) {
        let is_ours = |desk: &Arc<Desk>| Arc::ptr_eq(desk, &self.desk);
        let shared = &self.thread.0;
        let mut state = lock(&shared.state);
        let jobs = mem::take(&mut state.to_do).into_iter();
        let (given_up, others): (VecDeque<Job>, VecDeque<Job>) =
            jobs.partition(|job| is_ours(&job.desk));
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

impl Shared {
    /// Runs all errands that are waiting.
    fn work(&self) {
        loop {
            let mut state = lock(&self.state);
            let Some(job) = state.to_do.pop_front() else {
                state.at_work = false;
                return;
            };
            state.serves = Some(job.desk.clone());
            drop(state);
            let Job {
                desk,
                key,
                devices,
                errand,
            } = job;
            // The panic of an implementation is logged already. The handshake ends by its deadline,
            // and the others continue.
            if let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| errand.run(&*devices))) {
                lock(&desk.done).push((key, outcome));
                desk.bell.ring();
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
    use crate::negotiate::End;
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

    fn done_next(errands: &Errands) -> Vec<(u64, Outcome)> {
        let mut bell = [PollFd::new(errands.bell(), PollFlags::IN)];
        poll(&mut bell, None).unwrap();
        errands.bell().silence();
        errands.take_done()
    }

    #[test]
    fn taking_results_leaves_a_shared_bell_rung() {
        let local = Local::new(NodeIdentity([1; 16]), 1);
        let bell = Arc::new(Bell::new().unwrap());
        let errands = Errands::ringing(&local, bell.clone());
        // Somebody else has left something, for which the owner of the bell has not looked yet.
        bell.ring();
        assert!(errands.take_done().is_empty());
        let mut shared = [PollFd::new(&*bell, PollFlags::IN)];
        assert_eq!(poll(&mut shared, Some(&Timespec::default())).unwrap(), 1);
    }

    #[test]
    fn results_come_in_order_under_their_keys_and_a_panic_takes_no_other_with_it() {
        let local = Local::new(NodeIdentity([1; 16]), 1);
        let errands = Errands::new(&local).unwrap();
        let devices: Arc<dyn VerbsDevices> = Arc::new(Moody);
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        // The later rounds begin after the thread has ended.
        for round in 0..3 {
            errands.begin(round * 3, &devices, Errand::Find(elsewhere));
            errands.begin(round * 3 + 1, &devices, Errand::Find([127, 0, 0, 1].into()));
            errands.begin(
                round * 3 + 2,
                &devices,
                Errand::Prepare(PairRequest {
                    local: elsewhere,
                    peer: (elsewhere, 7000).into(),
                    offered: None,
                    end: End::Acceptor,
                    resumes: None,
                }),
            );
            let mut done = Vec::new();
            while done.len() < 2 {
                done.extend(done_next(&errands));
            }
            let [
                (first, Outcome::Found(found)),
                (last, Outcome::Prepared(prepared)),
            ] = &done[..]
            else {
                panic!("other outcomes, or others in number");
            };
            assert_eq!((*first, *last), (round * 3, round * 3 + 2));
            assert_eq!(*found, Err("not from 192.0.2.1".to_string()));
            assert!(prepared.is_err());
            assert!(errands.take_done().is_empty());
            assert!(lock(&errands.thread.0.state).to_do.is_empty());
        }
    }
}
