//! A completion channel: the descriptor to sleep on until a completion queue has events.
//!
//! The descriptor does not block: owners sleep on it in a set of descriptors, and drain it to
//! `EAGAIN` after every wake-up. Each event that is taken has to be acknowledged, which takes a
//! lock in the library, so acknowledgements are given in batches. The rest are given before the
//! queue is destroyed, since that call would wait for them for ever.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::device::{DeviceContext, set_nonblocking};
use crate::{VerbsError, provider::ChannelHandle};

/// A completion channel, which the completion queue that is made with it owns.
///
/// See [`ibv_create_comp_channel(3)`](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html).
#[derive(Debug)]
pub(crate) struct CompletionChannel {
    pub(crate) handle: ChannelHandle,
    fd: RawFd,
    context: Arc<DeviceContext>,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<DeviceContext>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let made = unsafe { context.provider().create_channel(context.opened.handle) };
        let (handle, fd) = made.map_err(context.failed(
            "ibv_create_comp_channel",
            "waiting without polling is impossible; raise the limit of open files (ulimit -n)",
        ))?;
        let channel = Self {
            handle,
            fd,
            context: Arc::clone(context),
        };
        let failed = context.failed("fcntl", "reading the channel could block a turn");
        set_nonblocking(channel.as_fd()).map_err(failed)?;
        Ok(channel)
    }

    /// Takes one event, and returns the tag of its queue; `None` when none is left. The event has to be
    /// acknowledged later.
    pub(crate) fn take_event(&self) -> Result<Option<u64>, VerbsError> {
        // SAFETY: the channel is alive.
        let taken = unsafe { self.context.provider().channel_event(self.handle) };
        let consequence = "the queue has to be polled";
        taken.map_err(self.context.failed("ibv_get_cq_event", consequence))
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
        // SAFETY: the queues on this channel kept it, and are destroyed.
        unsafe { self.context.destroy(self.handle) };
    }
}
