//! Waiting for completions: the one order in which a completion queue is polled, armed and
//! slept on.
//!
//! Two kinds of owner use it. An owner that sleeps on this queue alone calls
//! [`wait`](CompletionWait::wait). An event loop has the queue's descriptor in a set with others,
//! and takes the same steps one by one:
//!
//! ```text
//!   each turn               poll
//!   before it sleeps        prepare_sleep: arm, poll again; nothing? sleep in the set
//!   fd was readable         take_events, then poll
//! ```
//!
//! [`ArmedQueue`] has the reasons for this order, and its models. Acknowledgements of events are
//! batched by the queue, and given back before it is destroyed.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use ibex_base::sync::{ArmableQueue, ArmedQueue, Slept};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{CompletionQueue, Device, VerbsError, WorkCompletion};

/// A completion queue with a sleeping owner.
#[derive(Debug)]
pub struct CompletionWait {
    armed: ArmedQueue<CompletionQueue>,
}

impl CompletionWait {
    /// Creates a plain completion queue of this many entries, with a channel.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::with_channel`].
    pub fn open(device: &Device, entries: u32) -> Result<Self, VerbsError> {
        CompletionQueue::with_channel(device, entries).map(Self::over)
    }

    /// Wraps a queue, which has a channel.
    #[must_use]
    pub fn over(queue: CompletionQueue) -> Self {
        Self {
            armed: ArmedQueue::new(queue),
        }
    }

    /// Returns the queue, for queue pairs to complete into.
    #[inline]
    #[must_use]
    pub fn queue(&self) -> &CompletionQueue {
        self.armed.queue()
    }

    /// Wakes the sleeper for completions that their senders have marked
    /// ([`SendRequest::solicited`](crate::SendRequest::solicited)) and for failed ones only, from the
    /// next arming on. Others wait in the queue until then. At first all wake it.
    pub fn wake_for_solicited_only(&mut self, only: bool) {
        self.armed.queue_mut().solicited_only = only;
    }

    /// Takes the completions that are there, as far as they fit, oldest first. Allocates nothing.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::poll`].
    #[inline]
    pub fn poll<'array>(
        &mut self,
        into: &'array mut [WorkCompletion],
    ) -> Result<&'array [WorkCompletion], VerbsError> {
        let found = self.armed.poll(into)?;
        Ok(&into[..found])
    }

    /// Asks for one event when the next completion comes, unless one is on its way. Poll once more
    /// before sleeping: [`prepare_sleep`](Self::prepare_sleep) does both.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::arm`]; nothing will wake a sleeper then.
    #[inline]
    pub fn arm(&mut self) -> Result<(), VerbsError> {
        self.armed.arm()
    }

    /// Takes the steps before sleeping: arms, and polls again. If no completion is found,
    /// [`fd`](Self::fd) becomes readable as soon as one comes.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::arm`] and [`poll`](CompletionQueue::poll); then nothing
    /// will wake a sleeper.
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

    /// Empties the channel after [`fd`](Self::fd) was readable; poll afterwards. Returns the number
    /// of events, which may be 0.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::drain_events`].
    #[inline]
    pub fn take_events(&mut self) -> Result<u32, VerbsError> {
        self.armed.take_events()
    }

    /// Returns the descriptor to sleep on, alone or in a set.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue().channel_fd()
    }

    /// Sleeps until there are completions, and takes them as far as they fit. Returns none if the
    /// deadline came first.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::poll`], and those of `poll(2)`.
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

impl ArmableQueue for CompletionQueue {
    type Entry = WorkCompletion;
    type Error = VerbsError;

    #[inline]
    fn poll(&mut self, into: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        CompletionQueue::poll(self, into).map(<[_]>::len)
    }
    #[inline]
    fn arm(&mut self) -> Result<(), VerbsError> {
        CompletionQueue::arm(self, self.solicited_only)
    }

    fn drain_events(&mut self) -> Result<u32, VerbsError> {
        CompletionQueue::drain_events(self)
    }
}

/// Sleeps until the queue's channel is readable.
fn sleep(queue: &CompletionQueue, deadline: Option<Instant>) -> Result<Slept, VerbsError> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A time that the kernel cannot express means to wait without limit.
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let fd = queue.channel_fd();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref()) {
        Ok(0) => Ok(Slept::TimeIsUp),
        Ok(_) | Err(Errno::INTR) => Ok(Slept::Woken),
        Err(errno) => Err(queue.has_to_be_polled("ppoll", errno)),
    }
}
