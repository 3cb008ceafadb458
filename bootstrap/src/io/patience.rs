//! Waiting on the thread that dials.
#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Other work of the thread that dials.
///
/// A closure is the simplest implementation: it only says whether the call is cancelled.
pub trait Meanwhile {
    /// Returns whether the call is to end.
    fn is_cancelled(&self) -> bool;

    /// Readable when [`turn`](Self::turn) has something to do.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Does what can be done without waiting, and returns whether there was anything.
    fn turn(&self) -> bool {
        false
    }
}

impl<F: Fn() -> bool> Meanwhile for F {
    fn is_cancelled(&self) -> bool {
        self()
    }
}

/// The length of a wait, the ways to end it earlier, and the work that runs meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) deadline: Instant,
    pub(super) meanwhile: &'a dyn Meanwhile,
}

/// Work that runs during a wait that can no longer be cancelled.
struct Uncancelled<'a>(&'a dyn Meanwhile);

impl Meanwhile for Uncancelled<'_> {
    fn is_cancelled(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }

    fn turn(&self) -> bool {
        self.0.turn()
    }
}

/// The call was cancelled, as [`Meanwhile::is_cancelled`] said.
pub(super) struct Cancelled;

/// A descriptor, and the readiness that it is waited for.
pub(super) type BorrowedWire<'a> = (BorrowedFd<'a>, PollFlags);

impl<'a> Patience<'a> {
    /// Returns the same wait with an earlier deadline, if `deadline` is earlier.
    pub(super) fn until(&self, deadline: Instant) -> Patience<'a> {
        Patience {
            deadline: self.deadline.min(deadline),
            meanwhile: self.meanwhile,
        }
    }

    /// Like [`wait`](Self::wait), but does not end when the call is cancelled.
    pub(super) fn wait_out(&self, descriptors: &[BorrowedWire<'_>]) {
        let meanwhile = Uncancelled(self.meanwhile);
        let patience = Patience {
            deadline: self.deadline,
            meanwhile: &meanwhile,
        };
        let waited = patience.wait(descriptors);
        debug_assert!(waited.is_ok(), "nobody cancels it");
    }

    /// Waits until one of the descriptors is ready or the deadline has passed.
    pub(super) fn wait(&self, descriptors: &[BorrowedWire<'_>]) -> Result<(), Cancelled> {
        let mut all: Vec<PollFd<'_>> = descriptors
            .iter()
            .map(|&(fd, wanted)| PollFd::from_borrowed_fd(fd, wanted))
            .collect();
        if let Some(fd) = self.meanwhile.fd() {
            all.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        loop {
            if self.meanwhile.is_cancelled() {
                return Err(Cancelled);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // Each look at this end's descriptors is followed by one turn, however much there is to
            // do. Work that the descriptor does not announce, such as a deadline, is found every
            // `GLANCE`.
            let slice = match self.meanwhile.turn() {
                true => Duration::ZERO,
                false => left.min(GLANCE),
            };
            let slice = Timespec {
                tv_sec: 0,
                tv_nsec: slice.subsec_nanos().into(),
            };
            match poll(&mut all, Some(&slice)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let ours = &all[..descriptors.len()];
                    if ours.iter().any(|fd| !fd.revents().is_empty()) {
                        return Ok(());
                    }
                }
                // An error of poll itself cannot be waited out; the caller's
                // next read or write on the descriptor meets its cause.
                Err(_) => return Ok(()),
            }
        }
    }
}

/// Longest wait without asking [`Meanwhile::is_cancelled`]. Dialing is rare and short, so the
/// wake-ups cost nothing, and a closing node is not kept waiting.
const GLANCE: Duration = Duration::from_millis(20);
