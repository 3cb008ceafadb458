//! A completion channel: the descriptor to sleep on until a completion queue has news.
//!
//! The descriptor does not block: owners sleep on it in a set of descriptors, and drain it to
//! `EAGAIN` after every wake-up. Each event that is taken has to be acknowledged, which takes a
//! lock in the library, so acknowledgements are given in batches. The rest are given before the
//! queue is destroyed, since that call would wait for them for ever.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};

use ibex_base::{fork, sync::lock};

use crate::{
    device::{Device, DeviceContext, set_nonblocking},
    error::VerbsError,
    provider::ChannelHandle,
};

/// A completion channel; a completion queue made with one owns it, unless it is a [`SharedChannel`].
///
/// See [`ibv_create_comp_channel(3)`](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html).
#[derive(Debug)]
pub struct CompletionChannel {
    pub(crate) handle: ChannelHandle,
    fd: RawFd,
    context: Arc<DeviceContext>,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<DeviceContext>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let (handle, fd) = unsafe { context.provider().create_channel(context.handle()) }.map_err(
            |errno| {
                context.failed(
                    "ibv_create_comp_channel",
                    errno,
                    "waiting without polling is impossible; raise the limit of open files (ulimit -n)",
                )
            },
        )?;
        let channel = Self {
            handle,
            fd,
            context: Arc::clone(context),
        };
        set_nonblocking(channel.as_fd()).map_err(|errno| {
            context.failed("fcntl", errno, "reading the channel could block a turn")
        })?;
        Ok(channel)
    }

    /// Takes one event, and returns the tag of its queue; `None` when none is left. The event has to be
    /// acknowledged later.
    pub(crate) fn take_event(&self) -> Result<Option<u64>, VerbsError> {
        // SAFETY: the channel is alive.
        unsafe { self.context.provider().channel_event(self.handle) }.map_err(|errno| {
            self.context
                .failed("ibv_get_cq_event", errno, "the queue has to be polled")
        })
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and closes it when it is destroyed,
        // which is when `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // SAFETY: the queues on this channel kept it, and are destroyed.
        if let Err(errno) = unsafe { self.context.provider().destroy_channel(self.handle) } {
            self.context.undestroyed("ibv_destroy_comp_channel", errno);
        }
    }
}

/// A channel that wakes one sleeper for several completion queues. Clones are the same channel.
///
/// See [`ibv_create_comp_channel(3)`](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html).
///
/// Its owner sleeps on the descriptor, takes the events, polls and arms the queues that they name, and
/// polls each once more before it sleeps again. A queue makes an event only after it was armed.
#[derive(Clone, Debug)]
pub struct SharedChannel {
    inner: Arc<ChannelOfMany>,
}

/// The part of a shared channel that its queues keep alive.
#[derive(Debug)]
pub(crate) struct ChannelOfMany {
    /// The events that were taken of each queue and are not acknowledged, by the queue's tag. An event
    /// is taken, and a queue destroyed, under this lock: the library waits for acknowledgements of all
    /// events that were taken before it destroys a queue.
    owed: Mutex<BTreeMap<u64, u32>>,
    channel: CompletionChannel,
}

impl SharedChannel {
    /// Makes a channel without queues ([`CompletionQueue::on_channel`](crate::CompletionQueue)).
    ///
    /// # Errors
    /// [`VerbsError`] if there are no descriptors, or the device is gone.
    pub fn new(device: &Device) -> Result<Self, VerbsError> {
        Ok(Self {
            inner: Arc::new(ChannelOfMany {
                owed: Mutex::new(BTreeMap::new()),
                channel: CompletionChannel::new(device.context())?,
            }),
        })
    }

    /// Takes an event. Returns the [tag](crate::CompletionQueue::tag) of the queue that has
    /// completions; `None` when no event waits. Does not block.
    ///
    /// See [`ibv_get_cq_event(3)`](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html).
    ///
    /// # Errors
    /// [`VerbsError`] if the channel cannot be read.
    pub fn take_event(&self) -> Result<Option<u64>, VerbsError> {
        let mut owed = lock(&self.inner.owed);
        let tag = self.inner.channel.take_event()?;
        if let Some(of_queue) = tag.and_then(|tag| owed.get_mut(&tag)) {
            // The library counts in the same way.
            *of_queue = of_queue.wrapping_add(1);
        }
        Ok(tag)
    }

    pub(crate) fn inner(&self) -> &Arc<ChannelOfMany> {
        &self.inner
    }
}

impl ChannelOfMany {
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.channel.context
    }

    /// Notes a queue.
    pub(crate) fn add(&self, tag: u64) {
        lock(&self.owed).insert(tag, 0);
    }

    /// Runs `end`, which destroys a queue, with the number of its events that are owed.
    pub(crate) fn remove<T>(&self, tag: u64, end: impl FnOnce(u32) -> T) -> T {
        let mut owed = lock(&self.owed);
        let of_queue = owed.remove(&tag).unwrap_or(0);
        end(of_queue)
    }
}

impl AsFd for SharedChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.channel.as_fd()
    }
}
