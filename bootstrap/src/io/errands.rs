//! Work of an acceptor's handshakes that runs off its turn: all use of RDMA devices.
//!
//! Rules:
//!
//! - Opening a device, registering memory and connecting a queue pair take milliseconds, for which
//!   no other session shall wait. They run one after the other on a thread that exists while there
//!   is something to do.
//! - An eventfd in the acceptor's epoll set tells of results, and the acceptor's turn takes them.
//! - A result for a handshake that has ended meanwhile is dropped, and its queue pair with it.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use crate::fabric::VerbsDevice;
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

/// The errands of one acceptor, each under the key of its handshake.
pub(super) struct Errands {
    devices: Arc<dyn VerbsDevices>,
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
    /// Set once the log was told that there can be no thread.
    has_warned: bool,
}

/// The state that the thread shares with its acceptor.
struct Desk {
    papers: Mutex<Papers>,
    /// Readable while something is in `done`.
    bell: OwnedFd,
}

#[derive(Default)]
struct Papers {
    to_do: VecDeque<(u64, Errand)>,
    done: Vec<(u64, Outcome)>,
    /// True if the thread will look at `to_do` again.
    at_work: bool,
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
    pub(super) fn new(devices: Arc<dyn VerbsDevices>) -> io::Result<Errands> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let papers = Mutex::default();
        Ok(Errands {
            devices,
            desk: Arc::new(Desk { papers, bell }),
            thread: None,
            has_warned: false,
        })
    }

    /// Readable when [`take_done`](Self::take_done) has something.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.desk.bell.as_fd()
    }

    /// Begins `errand` for the handshake `key`, on the errands' thread. If no thread can be
    /// started, the errand runs at once, and everything waits.
    pub(super) fn begin(&mut self, key: u64, errand: Errand) {
        let mut papers = self.desk.papers();
        papers.to_do.push_back((key, errand));
        if papers.at_work {
            return;
        }
        papers.at_work = true;
        drop(papers);
        // The thread before has nothing more to do, so the join returns at once.
        self.join();
        let (devices, desk) = (self.devices.clone(), self.desk.clone());
        let thread = thread::Builder::new().name("ibex-rdma".to_owned());
        match thread.spawn(move || desk.work(&*devices)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                // Each handshake fails to start a thread again; the log is told once.
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        %error,
                        "no thread for RDMA devices: queue pairs are made where the engine \
                         runs, and everything waits for it"
                    );
                }
                self.desk.work(&*self.devices);
            }
        }
    }

    /// Takes the results since the last call, with their keys.
    pub(super) fn take_done(&self) -> Vec<(u64, Outcome)> {
        // The eventfd is empty when another call has read it, and then so is the list.
        let _ = rustix::io::read(&self.desk.bell, &mut [0; 8]);
        std::mem::take(&mut self.desk.papers().done)
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Errands {
    /// Waits for the errand that is under way, so that no device is in use afterwards.
    fn drop(&mut self) {
        self.desk.papers().to_do.clear();
        self.join();
    }
}

impl Desk {
    /// Runs all errands that are waiting.
    fn work(&self, devices: &dyn VerbsDevices) {
        loop {
            let mut papers = self.papers();
            let Some((key, errand)) = papers.to_do.pop_front() else {
                papers.at_work = false;
                return;
            };
            drop(papers);
            // The panic of an implementation is logged already. The handshake ends by its deadline,
            // and the others continue.
            let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| errand.run(devices))) else {
                continue;
            };
            self.papers().done.push((key, outcome));
            // The eventfd is full only when it was rung 2^64 times and never read.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negotiate::End;
    use rustix::event::{PollFd, PollFlags, poll};

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
        let mut bell = [PollFd::from_borrowed_fd(errands.bell(), PollFlags::IN)];
        poll(&mut bell, None).unwrap();
        errands.take_done()
    }

    #[test]
    fn results_come_in_order_under_their_keys_and_a_panic_takes_no_other_with_it() {
        let mut errands = Errands::new(Arc::new(Moody)).unwrap();
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        // The later rounds begin after the thread has ended.
        for round in 0..3 {
            errands.begin(round * 3, Errand::Find(elsewhere));
            errands.begin(round * 3 + 1, Errand::Find([127, 0, 0, 1].into()));
            errands.begin(
                round * 3 + 2,
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
            let papers = errands.desk.papers();
            assert!(papers.to_do.is_empty());
        }
    }
}
