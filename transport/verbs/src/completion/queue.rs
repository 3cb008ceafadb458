//! A completion queue, in which the device reports the results of work requests.
//!
//! A queue is plain or, if the device supports it, extended: polled in batches, with a provider
//! that tells only the fields that are asked for ([`batch`](super::batch)).
//!
//! One owner polls and arms the queue, by `&mut`; queue pairs that complete into it only keep it
//! alive. [`CompletionWait`](crate::CompletionWait) sleeps on it without losing a wake-up.
//!
//! A queue that overflows is lost (`CQ_ERR`), so its size is at least the sum of the requests that
//! can complete into it: for each queue pair its sends and receives, and one more of each for
//! [`Teardown`](crate::Teardown).

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibex_base::fork;
use rustix::io::Errno;

use super::batch::{BatchPolling, PollFailure};
use super::{channel::CompletionChannel, drain_lock::DrainLock};
use crate::provider::{CompletionHandle, PollQueue, RequestNotify};
use crate::{VerbsError, WorkCompletion, device::DeviceContext};

/// The owner's end of a completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CompletionQueueObject>,
    pub(super) polling: Polling,
    pub(super) notify: RequestNotify,
    pub(super) entries: u32,
    /// A sleeper wakes for solicited completions only.
    pub(super) solicited_only: bool,
}

/// The calls by which the queue is polled.
#[derive(Debug)]
pub(super) enum Polling {
    Plain(PollQueue),
    Batches(Box<BatchPolling>),
}

/// The part of a completion queue that queue pairs keep alive.
#[derive(Debug)]
pub(crate) struct CompletionQueueObject {
    pub(crate) handle: CompletionHandle,
    pub(super) tag: u64,
    /// Events taken from the channel and not acknowledged yet. Written by the owner
    /// alone; atomic because `drop` may run elsewhere.
    pub(super) unacknowledged: AtomicU32,
    pub(crate) channel: Option<CompletionChannel>,
    /// The lock of an extended queue, whose library takes none.
    pub(super) drain_lock: Option<DrainLock>,
    pub(crate) context: Arc<DeviceContext>,
}

/// The number of events that are acknowledged at once, because acknowledging takes a lock.
const ACKNOWLEDGE_EVERY: u32 = 64;

impl CompletionQueue {
    /// Returns whether its completions have times.
    #[inline]
    #[must_use]
    pub fn has_times(&self) -> bool {
        match &self.polling {
            Polling::Plain(_) => false,
            Polling::Batches(polling) => polling.has_times(),
        }
    }

    /// Returns how many completions the queue holds; at least what was requested.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The number by which asynchronous events name it.
    #[inline]
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.inner.tag
    }

    /// Takes what is there, as far as it fits, oldest first. Allocates nothing.
    ///
    /// See [`ibv_poll_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html).
    ///
    /// # Errors
    /// [`VerbsError`] if the queue is lost, by overflow or with its device.
    #[inline]
    pub fn poll<'array>(
        &mut self,
        into: &'array mut [WorkCompletion],
    ) -> Result<&'array [WorkCompletion], VerbsError> {
        let poll = match &mut self.polling {
            Polling::Plain(poll) => *poll,
            Polling::Batches(_) => return self.poll_batches(into),
        };
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY:
        // 1. The queue is alive while `inner` is.
        // 2. `WorkCompletion` is `Wc` (repr(transparent)), and `into` has `room` of them.
        let found = unsafe { poll(self.inner.handle.as_ptr(), room, into.as_mut_ptr().cast()) };
        match usize::try_from(found) {
            Ok(found) if found <= into.len() => Ok(&into[..found]),
            _ => Err(self.lost("ibv_poll_cq", found.saturating_neg())),
        }
    }

    #[inline(never)]
    fn poll_batches<'array>(
        &mut self,
        into: &'array mut [WorkCompletion],
    ) -> Result<&'array [WorkCompletion], VerbsError> {
        let polled = match &mut self.polling {
            Polling::Plain(_) => return Ok(&[]),
            Polling::Batches(polling) => {
                // SAFETY: the queue is alive while `inner` is.
                self.inner.while_draining(|| unsafe { polling.poll(into) })
            }
        };
        match polled {
            Ok(found) => Ok(&into[..found]),
            Err((call, errno)) => Err(self.lost(call, errno)),
        }
    }

    /// Asks for one event when the next completion comes, or, with `solicited_only`, the
    /// next one whose sender wanted to wake us (a failed one always does).
    ///
    /// See [`ibv_req_notify_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html).
    ///
    /// Completions that are in the queue already make no event: poll once more after arming.
    ///
    /// # Errors
    /// [`VerbsError`] if the device is gone.
    #[inline]
    pub fn arm(&mut self, solicited_only: bool) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive while `inner` is.
        let status =
            unsafe { (self.notify)(self.inner.handle.as_ptr(), c_int::from(solicited_only)) };
        if status == 0 {
            return Ok(());
        }
        let errno = Errno::from_raw_os_error(status.abs());
        Err(self.has_to_be_polled("ibv_req_notify_cq", errno))
    }

    /// Empties the channel after a wake-up. Returns the number of events, which may be 0.
    ///
    /// See [`ibv_get_cq_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html).
    ///
    /// # Errors
    /// [`VerbsError`] if the channel cannot be read.
    ///
    /// # Panics
    /// If the queue was made without a channel of its own.
    pub fn drain_events(&mut self) -> Result<u32, VerbsError> {
        let channel = self.channel();
        let mut events = 0;
        let mut outcome = Ok(());
        loop {
            match channel.take_event() {
                Ok(Some(_)) => events += 1,
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        let owed = self.inner.unacknowledged.load(Ordering::Relaxed) + events;
        if owed >= ACKNOWLEDGE_EVERY {
            self.inner.acknowledge(owed);
            self.inner.unacknowledged.store(0, Ordering::Relaxed);
        } else {
            self.inner.unacknowledged.store(owed, Ordering::Relaxed);
        }
        outcome.map(|()| events)
    }

    /// Returns the descriptor to sleep on.
    ///
    /// # Panics
    /// If the queue was made without a channel of its own.
    #[must_use]
    pub fn channel_fd(&self) -> BorrowedFd<'_> {
        self.channel().as_fd()
    }

    fn channel(&self) -> &CompletionChannel {
        let channel = self.inner.channel.as_ref();
        channel.expect("the queue was made with a channel of its own")
    }

    /// A call failed that is about this queue.
    pub(crate) fn has_to_be_polled(&self, call: &'static str, errno: Errno) -> VerbsError {
        self.inner
            .context
            .failed(call, "the queue has to be polled")(errno)
    }

    #[cold]
    fn lost(&self, call: &'static str, errno: c_int) -> VerbsError {
        // `ibv_poll_cq` promises a negative number, but no particular one.
        let errno = match errno {
            1..4096 => Errno::from_raw_os_error(errno),
            _ => Errno::IO,
        };
        let consequence =
            "the completion queue is lost, and with it every connection that completes into it";
        self.inner.context.failed(call, consequence)(errno)
    }
}

impl CompletionQueueObject {
    /// Runs `poll`, during which nothing changes the queue from outside.
    fn while_draining(
        &self,
        poll: impl FnOnce() -> Result<usize, PollFailure>,
    ) -> Result<usize, PollFailure> {
        match &self.drain_lock {
            Some(lock) => lock.while_draining(poll),
            None => poll(),
        }
    }

    /// Runs `act`, which changes the queue from outside, as destroying a queue pair does.
    pub(crate) fn while_undrained<T>(&self, act: impl FnOnce() -> T) -> T {
        match &self.drain_lock {
            Some(lock) => lock.while_undrained(act),
            None => act(),
        }
    }

    /// Returns whether it is an extended queue.
    #[cfg(feature = "all")]
    pub(crate) fn is_extended(&self) -> bool {
        self.drain_lock.is_some()
    }

    fn acknowledge(&self, events: u32) {
        if events > 0 {
            // SAFETY: the queue is alive, and `events` events were taken from its channel.
            unsafe { self.context.provider().acknowledge(self.handle, events) };
        }
    }
}

impl Drop for CompletionQueueObject {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.acknowledge(self.unacknowledged.load(Ordering::Relaxed));
        // SAFETY: queue pairs on this queue held an `Arc` of it, so all are destroyed;
        // its channel goes after it, as a field.
        unsafe { self.context.destroy(self.handle) };
    }
}
