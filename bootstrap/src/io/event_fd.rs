//! A descriptor that other threads make readable.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd: readable from a ring until it is silenced.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

impl EventFd {
    pub(super) fn new() -> io::Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd(eventfd(0, flags)?))
    }

    pub(super) fn ring(&self) {
        // The eventfd is full only when it was rung 2^64 times and never read.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes back all rings. Whatever they announced is to be checked afterwards.
    pub(super) fn silence(&self) {
        // The read fails if nobody has rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
