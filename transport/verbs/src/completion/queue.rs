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

use super::{
    batch::BatchPolling, channel::CompletionChannel, drain_lock::DrainLock,
    work_completion::WorkCompletion,
};
use crate::{
    device::{Asked, Context, Device, clock::DeviceClock, new_tag},
    error::VerbsError,
    probe::polling::CompletionPolling,
    provider::{CompletionHandle, ExtendedInit, PollQueue, RequestNotify},
};

/// The owner's end of a completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    inner: Arc<Completions>,
    polling: Polling,
    notify: RequestNotify,
}

/// The calls by which the queue is polled.
#[derive(Debug)]
enum Polling {
    Plain(PollQueue),
    Batches(Box<BatchPolling>),
}

/// The part of a completion queue that queue pairs keep alive.
#[derive(Debug)]
pub(crate) struct Completions {
    pub(crate) handle: CompletionHandle,
    entries: u32,
    tag: u64,
    /// Events taken from the channel and not acknowledged yet. Written by the owner
    /// alone; atomic because `drop` may run elsewhere.
    unacknowledged: AtomicU32,
    channel: Option<CompletionChannel>,
    /// The lock of a queue whose library takes none.
    drain_lock: Option<DrainLock>,
    pub(crate) context: Arc<Context>,
}

/// The number of events that are acknowledged at once, because acknowledging takes a lock.
const ACKNOWLEDGE_EVERY: u32 = 64;

impl CompletionQueue {
    /// A plain queue that can only be polled.
    ///
    /// # Errors
    /// [`VerbsError`], with the device's limit where that is what stops it.
    pub fn polled(device: &Device, entries: u32) -> Result<Self, VerbsError> {
        Self::create(device, entries, None, 0, CompletionPolling::Plain, false)
    }

    /// A plain queue that can be slept on too.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::polled`].
    pub fn with_channel(device: &Device, entries: u32) -> Result<Self, VerbsError> {
        Self::of_kind(device, entries, 0, CompletionPolling::Plain, false)
    }

    /// A queue that can be slept on, whose interrupts are those of a completion vector of the
    /// device, polled like this, and with the time of each completion if `times` are wanted.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::polled`], and if the device has no such queue.
    pub fn of_kind(
        device: &Device,
        entries: u32,
        vector: u32,
        kind: CompletionPolling,
        times: bool,
    ) -> Result<Self, VerbsError> {
        let channel = CompletionChannel::new(device.context())?;
        Self::create(device, entries, Some(channel), vector, kind, times)
    }

    pub(crate) fn create(
        device: &Device,
        entries: u32,
        channel: Option<CompletionChannel>,
        vector: u32,
        kind: CompletionPolling,
        times: bool,
    ) -> Result<Self, VerbsError> {
        let context = device.context();
        let tag = new_tag();
        let init = ExtendedInit {
            entries,
            channel: channel.as_ref().map(|channel| channel.handle),
            vector,
            tag,
            times,
        };
        let made = match kind {
            CompletionPolling::Plain => plain(context, &init),
            CompletionPolling::Extended | CompletionPolling::ExtendedOneByOne => {
                extended(device, &init, kind)
            }
        };
        let (handle, entries, polling) = made.map_err(|(call, errno)| {
            let limit = context.attributes().max_completions;
            context.refused(
                call,
                errno,
                &[Asked::new(
                    "a completion queue",
                    entries,
                    limit,
                    "the depth of the send and receive queues",
                )],
            )
        })?;
        Ok(Self {
            inner: Arc::new(Completions {
                handle,
                entries,
                tag,
                unacknowledged: AtomicU32::new(0),
                channel,
                drain_lock: matches!(polling, Polling::Batches(_)).then(DrainLock::default),
                context: Arc::clone(context),
            }),
            polling,
            notify: context.opened().hot.request_notify,
        })
    }

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
        self.inner.entries
    }

    /// The number by which asynchronous events name it.
    #[inline]
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.inner.tag
    }

    /// Takes what is there, as far as it fits, oldest first. Allocates nothing.
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
        let Polling::Batches(polling) = &mut self.polling else {
            return Ok(&[]);
        };
        // SAFETY: the queue is alive while `inner` is.
        let mut poll = || unsafe { polling.poll(into) };
        let polled = match &self.inner.drain_lock {
            Some(lock) => lock.while_draining(poll),
            None => poll(),
        };
        match polled {
            Ok(found) => Ok(&into[..found]),
            Err((call, errno)) => Err(self.lost(call, errno)),
        }
    }

    /// Asks for one event when the next completion comes, or, with `solicited_only`, the
    /// next one whose sender wanted to wake us (a failed one always does).
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
        Err(self.inner.context.failed(
            "ibv_req_notify_cq",
            Errno::from_raw_os_error(status.abs()),
            "the queue has to be polled",
        ))
    }

    /// Empties the channel after a wake-up. Returns the number of events, which may be 0.
    ///
    /// # Errors
    /// [`VerbsError`] if the channel cannot be read.
    ///
    /// # Panics
    /// If the queue was made without a channel.
    pub fn drain_events(&mut self) -> Result<u32, VerbsError> {
        let channel = self.channel();
        let mut events = 0;
        let mut outcome = Ok(());
        loop {
            match channel.take_event() {
                Ok(true) => events += 1,
                Ok(false) => break,
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
    /// If the queue was made without a channel.
    #[must_use]
    pub fn channel_fd(&self) -> BorrowedFd<'_> {
        self.channel().as_fd()
    }

    fn channel(&self) -> &CompletionChannel {
        self.inner
            .channel
            .as_ref()
            .expect("the queue was made with a channel")
    }
    #[inline]
    pub(crate) fn inner(&self) -> &Arc<Completions> {
        &self.inner
    }

    /// A call failed that is about this queue.
    pub(crate) fn failed(
        &self,
        call: &'static str,
        errno: Errno,
        consequence: &'static str,
    ) -> VerbsError {
        self.inner.context.failed(call, errno, consequence)
    }

    #[cold]
    fn lost(&self, call: &'static str, errno: c_int) -> VerbsError {
        // `ibv_poll_cq` promises a negative number, but no particular one.
        let errno = match errno {
            1..4096 => Errno::from_raw_os_error(errno),
            _ => Errno::IO,
        };
        self.inner.context.failed(
            call,
            errno,
            "the completion queue is lost, and with it every connection that completes into it",
        )
    }
}

/// The result of making a queue, or the call that refused it.
type Made = Result<(CompletionHandle, u32, Polling), (&'static str, Errno)>;

fn plain(context: &Context, init: &ExtendedInit) -> Made {
    let (entries, channel) = (init.entries, init.channel);
    // SAFETY: context and channel are alive.
    let made = unsafe {
        let handle = context.handle();
        let provider = context.provider();
        provider.create_completion_queue(handle, entries, channel, init.vector, init.tag)
    };
    let (handle, entries) = made.map_err(|errno| ("ibv_create_cq", errno))?;
    let poll = context.opened().hot.poll_queue;
    Ok((handle, entries, Polling::Plain(poll)))
}

fn extended(device: &Device, init: &ExtendedInit, kind: CompletionPolling) -> Made {
    let context = device.context();
    let clock = match init.times {
        true => Some(DeviceClock::of(device).map_err(|errno| ("ibv_query_rt_values_ex", errno))?),
        false => None,
    };
    // SAFETY: context and channel are alive.
    let made = unsafe {
        let handle = context.handle();
        context.provider().create_extended_queue(handle, init)
    };
    let made = made.map_err(|errno| ("ibv_create_cq_ex", errno))?;
    let most = (kind == CompletionPolling::ExtendedOneByOne).then_some(1);
    let polling = BatchPolling::new(made.handle, made.calls, most, clock);
    Ok((
        made.handle,
        made.entries,
        Polling::Batches(Box::new(polling)),
    ))
}

impl Completions {
    /// Runs `act`, which changes the queue from outside, as destroying a queue pair does.
    pub(crate) fn while_undrained<T>(&self, act: impl FnOnce() -> T) -> T {
        match &self.drain_lock {
            Some(lock) => lock.while_undrained(act),
            None => act(),
        }
    }

    fn acknowledge(&self, events: u32) {
        if events > 0 {
            // SAFETY: the queue is alive, and `events` events were taken from its channel.
            unsafe { self.context.provider().acknowledge(self.handle, events) };
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.acknowledge(self.unacknowledged.load(Ordering::Relaxed));
        // SAFETY: queue pairs on this queue held an `Arc` of it, so all are destroyed;
        // its channel goes after it, as a field.
        let destroyed = unsafe {
            self.context
                .provider()
                .destroy_completion_queue(self.handle)
        };
        if let Err(errno) = destroyed {
            self.context.undestroyed("ibv_destroy_cq", errno);
        }
    }
}
