//! Descriptors that are kept for parts of a session until these are made.
//!
//! A session that is agreed on has what its parts need, and a process at its limit of open files
//! refuses the next session. What is kept is a copy of an eventfd that nobody uses.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

/// Descriptors that are kept; dropping them gives them back.
#[derive(Debug, Default)]
pub(super) struct Reserve(Vec<OwnedFd>);

impl Reserve {
    /// Keeps `count` descriptors, if this process may open `beside` others as well.
    ///
    /// Only the process's own limit counts. Where the system lacks files or memory, whoever makes
    /// the parts finds that.
    ///
    /// # Errors
    /// The number of files that this process may open.
    pub(super) fn keep(count: usize, beside: usize) -> Result<Reserve, u32> {
        let mut kept: Vec<OwnedFd> = Vec::with_capacity(count + beside);
        while kept.len() < count + beside {
            let one = match kept.first() {
                Some(first) => fcntl_dupfd_cloexec(first, 0),
                None => eventfd(0, EventfdFlags::CLOEXEC),
            };
            match one {
                Ok(one) => kept.push(one),
                Err(Errno::MFILE) => return Err(limit()),
                Err(_) => break,
            }
        }
        kept.truncate(count);
        Ok(Reserve(kept))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the number of files that this process may open.
pub(super) fn limit() -> u32 {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX))
}

/// The number of descriptors that stay free for the channels of all sessions. Control segments take
/// them, one for each sixteen sessions with one process. Rings and large messages take one until it
/// is passed.
pub(super) const FOR_CHANNELS: usize = 32;

/// The descriptors of a session over shared memory beside its connection: the socket that passes
/// descriptors, and the bells.
pub(super) const OF_SESSION: usize = 2;
