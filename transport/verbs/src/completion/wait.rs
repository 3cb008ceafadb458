//! Waiting for completions: the one order in which a completion queue is polled, armed and
//! slept on.
//!
//! Two kinds of owner use it. One that sleeps on this queue alone calls
//! [`wait`](CompletionWait::wait). An event loop has the queue's descriptor in a set with
//! others, and takes the same steps apart:
//!
//! ```text
//!   each turn               poll
//!   before it sleeps        prepare_sleep: arm, poll again; nothing? sleep in the set
//!   fd was readable         take_events, then poll
//! ```
//!
//! Why in this order, and the models of it: [`ArmedQueue`]. Acknowledgements of events are
//! batched by the queue, and given back before it is destroyed.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use ibex_base::sync::{ArmedQueue, EventQueue, Slept};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{queue::CompletionQueue, work_completion::WorkCompletion};
use crate::{device::Device, error::VerbsError};

/// A completion queue that is slept on.
#[derive(Debug)]
pub struct CompletionWait {
    armed: ArmedQueue<CompletionQueue>,
}

impl CompletionWait {
    /// A plain completion queue of so many entries, with a channel.
    ///
    /// # Errors
    /// As [`CompletionQueue::with_channel`].
    pub fn open(device: &Device, entries: u32) -> Result<Self, VerbsError> {
        CompletionQueue::with_channel(device, entries).map(Self::over)
    }

    /// Sleeps on this queue, which has a channel.
    #[must_use]
    pub fn over(queue: CompletionQueue) -> Self {
        Self {
            armed: ArmedQueue::new(queue),
        }
    }

    /// The queue, for queue pairs to complete into.
    #[inline]
    #[must_use]
    pub fn queue(&self) -> &CompletionQueue {
        self.armed.queue()
    }

    /// Takes what is there, as far as it fits, oldest first. Allocates nothing.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    #[inline]
    pub fn poll<'array>(
        &mut self,
        into: &'array mut [WorkCompletion],
    ) -> Result<&'array [WorkCompletion], VerbsError> {
        let found = self.armed.poll(into)?;
        Ok(&into[..found])
    }

    /// Asks for one event when the next completion comes, unless one is on its way. Who
    /// wants to sleep polls once more first: [`prepare_sleep`](Self::prepare_sleep) is both.
    ///
    /// # Errors
    /// As [`CompletionQueue::arm`]: nothing will wake a sleeper.
    #[inline]
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        self.armed.arm()
    }

    /// The steps before sleeping: arms, and polls again. If nothing is found,
    /// [`fd`](Self::fd) becomes readable as soon as something comes.
    ///
    /// # Errors
    /// As [`CompletionQueue::arm`] and [`poll`](CompletionQueue::poll): nothing will wake a
    /// sleeper.
    ///
    /// # Panics
    /// If `into` has no room.
    #[inline]
    pub fn prepare_sleep<'array>(
        &mut self,
        into: &'array mut [WorkCompletion],
    ) -> Result<&'array [WorkCompletion], VerbsError> {
        let found = self.armed.prepare_sleep(into)?;
        Ok(&into[..found])
    }

    /// Empties the channel when [`fd`](Self::fd) was readable; poll behind it. Gives the
    /// number of events, which may be 0.
    ///
    /// # Errors
    /// As [`CompletionQueue::drain_events`].
    #[inline]
    pub fn take_events(&mut self) -> Result<u32, VerbsError> {
        self.armed.take_events()
    }

    /// Returns the descriptor to sleep on, alone or in a set.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue().channel_fd()
    }

    /// Sleeps until something is there, and takes it as far as it fits; nothing if the
    /// deadline came first.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`], and what sleeping itself meets.
    ///
    /// # Panics
    /// If `into` has no room.
    pub fn wait<'array>(
        &mut self,
        into: &'array mut [WorkCompletion],
        deadline: Option<Instant>,
    ) -> Result<&'array [WorkCompletion], VerbsError> {
        let found = self.armed.wait(into, |queue| sleep(queue, deadline))?;
        Ok(&into[..found])
    }
}

impl EventQueue for CompletionQueue {
    type Entry = WorkCompletion;
    type Error = VerbsError;

    #[inline]
    fn poll(&mut self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        CompletionQueue::poll(self, into).map(<[_]>::len)
    }
    #[inline]
    fn arm(&mut self) -> Result<(), VerbsError> {
        CompletionQueue::arm(self, false)
    }

    fn drain_events(&mut self) -> Result<u32, VerbsError> {
        CompletionQueue::drain_events(self)
    }
}

/// Sleeps until the queue's channel is readable.
fn sleep(queue: &CompletionQueue, deadline: Option<Instant>) -> Result<Slept, VerbsError> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A time that the kernel cannot express is for ever.
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let fd = queue.channel_fd();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
        Ok(0) => Ok(Slept::TimeIsUp),
        Ok(_) | Err(Errno::INTR) => Ok(Slept::Woken),
        Err(errno) => Err(queue.failed("ppoll", errno, "the queue has to be polled")),
    }
}
