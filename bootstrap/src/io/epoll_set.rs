//! The epoll set in which an acceptor or a dialer watches its sockets, each under a key.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// An epoll set whose entries have keys.
pub(super) struct EpollSet(OwnedFd);

/// The epoll set as the owner of one key sees it.
#[derive(Clone, Copy)]
pub(super) struct EpollEntry<'a> {
    epoll: BorrowedFd<'a>,
    key: u64,
}

impl EpollSet {
    pub(super) fn new() -> io::Result<EpollSet> {
        Ok(EpollSet(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub(super) fn watch(&self, key: u64) -> EpollEntry<'_> {
        EpollEntry {
            epoll: self.0.as_fd(),
            key,
        }
    }

    /// Returns the keys whose sockets are ready, without waiting, in ascending order: those of at
    /// most `most` sockets.
    pub(super) fn ready(&self, most: usize) -> Vec<u64> {
        let mut events = Vec::with_capacity(most);
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if let Err(error) = epoll::wait(&self.0, buffer, Some(&no_wait)) {
            // Only EINTR is possible on a valid set, and then the set is still ready at the next
            // look.
            debug_assert_eq!(error, Errno::INTR);
            return Vec::new();
        }
        let mut keys: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl EpollEntry<'_> {
    pub(super) fn add(&self, socket: impl AsFd, events: EventFlags) -> io::Result<()> {
        epoll::add(self.epoll, socket, EventData::new_u64(self.key), events)?;
        Ok(())
    }

    pub(super) fn remove(&self, socket: impl AsFd) {
        // The call fails only for a socket that is not in the set, which is the aim.
        let _ = epoll::delete(self.epoll, socket);
    }

    pub(super) fn modify(&self, socket: impl AsFd, events: EventFlags) {
        // The call needs no memory, and the socket is in the set.
        let _ = epoll::modify(self.epoll, socket, EventData::new_u64(self.key), events);
    }
}
