//! How completion queues are made.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;

use super::queue::{CompletionQueueObject, Polling};
use super::{batch::BatchPolling, channel::CompletionChannel, drain_lock::DrainLock};
use crate::device::{DeviceContext, new_tag};
use crate::provider::{CompletionHandle, CompletionInit};
use crate::{
    CompletionPolling, CompletionQueue, Device, VerbsError, device::clock::DeviceClock,
    device::requested_size::RequestedSize,
};

impl CompletionQueue {
    /// A plain queue that can only be polled.
    ///
    /// See [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
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
    /// See [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
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
        let channel = Some(CompletionChannel::new(device.context())?);
        Self::create(device, entries, channel, vector, kind, times)
    }

    fn create(
        device: &Device,
        entries: u32,
        channel: Option<CompletionChannel>,
        vector: u32,
        kind: CompletionPolling,
        times: bool,
    ) -> Result<Self, VerbsError> {
        let context = device.context();
        let init = CompletionInit {
            context: context.opened.handle,
            entries,
            channel: channel.as_ref().map(|channel| channel.handle),
            vector,
            tag: new_tag(),
            times,
        };
        let made = match kind {
            CompletionPolling::Plain => plain(context, &init),
            CompletionPolling::Extended => extended(device, &init),
        };
        let (handle, entries, polling) = made.map_err(|(call, errno)| {
            let limit = context.attributes.max_completions;
            let lower = "the depth of the send and receive queues";
            let asked = RequestedSize::new("a completion queue", entries, limit, lower);
            context.refused(call, errno, &[asked])
        })?;
        Ok(Self {
            inner: Arc::new(CompletionQueueObject {
                handle,
                tag: init.tag,
                unacknowledged: AtomicU32::new(0),
                channel,
                drain_lock: (kind == CompletionPolling::Extended).then(DrainLock::default),
                context: Arc::clone(context),
            }),
            polling,
            notify: context.opened.hot.request_notify,
            entries,
            solicited_only: false,
        })
    }
}

/// The result of making a queue, or the call that refused it.
type Made = Result<(CompletionHandle, u32, Polling), (&'static str, Errno)>;

fn plain(context: &DeviceContext, init: &CompletionInit) -> Made {
    // SAFETY: context and channel are alive.
    let made = unsafe { context.provider().create_completion_queue(init) };
    let (handle, entries) = made.map_err(|errno| ("ibv_create_cq", errno))?;
    let poll = context.opened.hot.poll_queue;
    Ok((handle, entries, Polling::Plain(poll)))
}

fn extended(device: &Device, init: &CompletionInit) -> Made {
    let context = device.context();
    let clock = match init.times {
        true => Some(DeviceClock::of(device).map_err(|errno| ("ibv_query_rt_values_ex", errno))?),
        false => None,
    };
    // SAFETY: context and channel are alive.
    let made = unsafe { context.provider().create_extended_queue(init) };
    let made = made.map_err(|errno| ("ibv_create_cq_ex", errno))?;
    let polling = BatchPolling::new(made.handle, made.calls, clock);
    Ok((
        made.handle,
        made.entries,
        Polling::Batches(Box::new(polling)),
    ))
}
