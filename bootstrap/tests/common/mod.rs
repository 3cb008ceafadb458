//! A node that listens on a thread of its own, for tests over real sockets.

#![allow(dead_code, reason = "each test binary uses its own part of this file")]

pub(crate) mod dialing;
pub(crate) mod fake_devices;
pub(crate) mod secured;
pub(crate) mod sessions;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use dialing::dial;
use ibex_bootstrap::{
    Acceptor, DialError, Established, HandshakeFailure, Local, NodeIdentity, ResumedConnection,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Turns an [`Acceptor`] until it is dropped.
pub(crate) struct Listening {
    pub(crate) address: String,
    pub(crate) established: Receiver<Established>,
    pub(crate) resumed: Receiver<ResumedConnection>,
    pub(crate) failures: Receiver<HandshakeFailure>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    pub(crate) fn with(local: Local) -> Listening {
        Listening::at("127.0.0.1:0", local)
    }

    pub(crate) fn at(address: &str, local: Local) -> Listening {
        let acceptor = Acceptor::bind(address.parse().unwrap(), local).unwrap();
        Listening::turning(acceptor)
    }

    fn turning(mut acceptor: Acceptor) -> Listening {
        let address = acceptor.local_addr().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let (to_established, established) = channel();
        let (to_resumed, resumed) = channel();
        let (to_failures, failures) = channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // The test that waits for results may have ended.
                while let Some(one) = acceptor.poll_established() {
                    let _ = to_established.send(one);
                }
                while let Some(one) = acceptor.poll_resumed() {
                    let _ = to_resumed.send(one);
                }
                while let Some(one) = acceptor.poll_failure() {
                    let _ = to_failures.send(one);
                }
                let now = Instant::now();
                let due = acceptor
                    .next_deadline()
                    .map(|due| due.saturating_duration_since(now));
                wait_readable(&acceptor, due.unwrap_or(GLANCE).min(GLANCE));
                acceptor.turn(Instant::now());
            }
        });
        Listening {
            address,
            established,
            resumed,
            failures,
            stop,
            thread: Some(thread),
        }
    }
}

impl Listening {
    /// Returns the thread that turns the acceptor.
    pub(crate) fn thread_id(&self) -> ThreadId {
        self.thread.as_ref().unwrap().thread().id()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the acceptor's thread panicked"
            );
        }
    }
}

/// Waits for up to `timeout`, and returns whether the acceptor has work.
pub(crate) fn wait_readable(acceptor: &Acceptor, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut descriptors = [PollFd::from_borrowed_fd(acceptor.as_fd(), PollFlags::IN)];
    poll(&mut descriptors, Some(&timeout)).unwrap() > 0
}

/// A node told apart by `identity`, patient enough for a loaded machine.
pub(crate) fn node(identity: u8) -> Local {
    let mut local = Local::new(NodeIdentity([identity; 16]), 1);
    local.handshake_timeout = LONG;
    local
}

pub(crate) fn dial_node_1(address: &str) -> Result<Established, DialError> {
    dial(address, &node(1), LONG)
}

/// Time-out for events that must happen: a watchdog, no measurement.
pub(crate) const LONG: Duration = Duration::from_secs(300);

const GLANCE: Duration = Duration::from_millis(20);

/// Returns whether the acceptor has work.
pub(crate) fn is_readable(acceptor: &Acceptor) -> bool {
    has_bytes(acceptor.as_fd())
}

/// Returns whether a descriptor is readable now.
pub(crate) fn has_bytes(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}
