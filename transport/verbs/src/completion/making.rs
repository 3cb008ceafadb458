//! How completion queues are made.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;

use super::{
    batch::BatchPolling,
    channel::{CompletionChannel, SharedChannel},
    drain_lock::DrainLock,
    queue::{Channel, CompletionQueue, CompletionQueueObject, Polling},
    room::CompletionRoom,
};
use crate::{
    abi::{completion_fields::CompletionFields, completion_polling::CompletionPolling},
    device::{Device, DeviceContext, clock::DeviceClock, new_tag, requested_size::RequestedSize},
    error::VerbsError,
    provider::{CompletionHandle, ExtendedInit},
};

impl CompletionQueue {
    /// A plain queue that can only be polled.
    ///
    /// See [`ibv_create_cq(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
    ///
    /// # Errors
    /// [`VerbsError`], with the device's limit where that is what stops it.
    pub fn polled(device: &Device, entries: u32) -> Result<Self, VerbsError> {
        let channel = Channel::None;
        Self::create(device, entries, channel, 0, CompletionPolling::Plain, false)
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
        let channel = Channel::Own(CompletionChannel::new(device.context())?);
        Self::create(device, entries, channel, vector, kind, times)
    }

    /// An extended queue that can be slept on and tells further fields of its completions, which
    /// [`poll_details`](Self::poll_details) reads. `kind` is the result of
    /// [`PollingChoice::make`](crate::PollingChoice::make).
    ///
    /// See [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::polled`]. [`VerbsError::Unsupported`] if the device does not
    /// tell one of the fields, or `kind` is [`Plain`](CompletionPolling::Plain) and a field is wanted.
    pub fn with_fields(
        device: &Device,
        entries: u32,
        kind: CompletionPolling,
        fields: CompletionFields,
    ) -> Result<Self, VerbsError> {
        let context = device.context();
        if kind == CompletionPolling::Plain && fields != CompletionFields::default() {
            return Err(lacks_fields(context, Errno::OPNOTSUPP));
        }
        let channel = Channel::Own(CompletionChannel::new(context)?);
        let init = ExtendedInit {
            entries,
            channel: channel.handle(),
            vector: 0,
            tag: new_tag(),
            times: false,
            fields,
            ignores_overrun: false,
        };
        Self::of_init(device, &init, channel, kind)
    }

    /// An extended queue that can be slept on, whose device does not look whether the queue has room
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`). Completions beyond its size would be lost without an
    /// event, so the room is counted here: each queue pair takes as much as it may have outstanding
    /// when it is made, and gives it back when it is dropped. A queue pair for which there is no room
    /// is refused, and so is one with a shared receive queue, whose receives are no one queue pair's.
    ///
    /// A request is outstanding until it is retired, so retire only those whose completion was
    /// polled. `kind` is the result of [`PollingChoice::make`](crate::PollingChoice::make).
    ///
    /// ```
    /// use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};
    /// use ibex_verbs::*;
    ///
    /// let fake = FakeProvider::new(vec![FakeDevice::soft_roce("rxe0", 1, [192, 0, 2, 1])]);
    /// let device = Device::open(&fake.provider(), "rxe0")?;
    /// let domain = ProtectionDomain::new(&device)?;
    /// let queue = CompletionQueue::ignoring_overrun(&device, 63, CompletionPolling::Extended)?;
    /// let builder = QueuePairBuilder::new(&domain, &queue).send_requests(16).receives(16, 1);
    /// let first = builder.clone().build(1, ConnectionSettings::default())?;
    /// let refused = builder.build(1, ConnectionSettings::default()).unwrap_err();
    /// assert!(matches!(refused, VerbsError::NoCompletionRoom { needed: 34, left: 29, .. }));
    /// # Ok::<(), VerbsError>(())
    /// ```
    ///
    /// See [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::polled`]. [`VerbsError::Unsupported`] if the device has no
    /// such queue, or `kind` is [`Plain`](CompletionPolling::Plain).
    pub fn ignoring_overrun(
        device: &Device,
        entries: u32,
        kind: CompletionPolling,
    ) -> Result<Self, VerbsError> {
        let context = device.context();
        if kind == CompletionPolling::Plain {
            return Err(lacks_ignoring(context, Errno::OPNOTSUPP));
        }
        let channel = Channel::Own(CompletionChannel::new(context)?);
        let init = ExtendedInit {
            entries,
            channel: channel.handle(),
            vector: 0,
            tag: new_tag(),
            times: false,
            fields: CompletionFields::default(),
            ignores_overrun: true,
        };
        Self::of_init(device, &init, channel, kind)
    }

    /// A queue like that of [`of_kind`](Self::of_kind), which wakes a channel that other queues wake
    /// too. Its events are taken from the channel: [`drain_events`](Self::drain_events) and
    /// [`channel_fd`](Self::channel_fd) are of queues with a channel of their own.
    ///
    /// # Errors
    /// The errors of [`of_kind`](Self::of_kind), and [`VerbsError::OtherDevice`].
    pub fn on_channel(
        device: &Device,
        entries: u32,
        channel: &SharedChannel,
        kind: CompletionPolling,
        times: bool,
    ) -> Result<Self, VerbsError> {
        let shared = channel.inner();
        if !Arc::ptr_eq(shared.context(), device.context()) {
            return Err(VerbsError::OtherDevice {
                object: "completion channel",
                device: device.name().to_owned(),
                other: shared.context().name().to_owned(),
            });
        }
        let queue = Channel::Shared(Arc::clone(shared));
        Self::create(device, entries, queue, 0, kind, times)
    }

    pub(crate) fn create(
        device: &Device,
        entries: u32,
        channel: Channel,
        vector: u32,
        kind: CompletionPolling,
        times: bool,
    ) -> Result<Self, VerbsError> {
        let init = ExtendedInit {
            entries,
            channel: channel.handle(),
            vector,
            tag: new_tag(),
            times,
            fields: CompletionFields::default(),
            ignores_overrun: false,
        };
        Self::of_init(device, &init, channel, kind)
    }

    fn of_init(
        device: &Device,
        init: &ExtendedInit,
        channel: Channel,
        kind: CompletionPolling,
    ) -> Result<Self, VerbsError> {
        let context = device.context();
        let (entries, tag) = (init.entries, init.tag);
        let made = match kind {
            CompletionPolling::Plain => plain(context, init),
            CompletionPolling::Extended => extended(device, init),
        };
        let (handle, entries, polling) = made.map_err(|(call, errno)| {
            let is_absent = matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS);
            if is_absent && init.fields != CompletionFields::default() {
                return lacks_fields(context, errno);
            }
            if is_absent && init.ignores_overrun {
                return lacks_ignoring(context, errno);
            }
            let limit = context.attributes().max_completions;
            context.refused(
                call,
                errno,
                &[RequestedSize::new(
                    "a completion queue",
                    entries,
                    limit,
                    "the depth of the send and receive queues",
                )],
            )
        })?;
        if let Channel::Shared(shared) = &channel {
            shared.add(tag);
        }
        Ok(Self {
            inner: Arc::new(CompletionQueueObject {
                handle,
                tag,
                unacknowledged: AtomicU32::new(0),
                channel,
                drain_lock: (!matches!(polling, Polling::Plain(_))).then(DrainLock::default),
                room: init.ignores_overrun.then(|| CompletionRoom::new(entries)),
                #[cfg(feature = "all")]
                names_senders: kind == CompletionPolling::Plain || init.fields.name_senders(),
                context: Arc::clone(context),
            }),
            polling,
            notify: context.opened().hot.request_notify,
            entries,
            solicited_only: false,
        })
    }
}

/// The result of making a queue, or the call that refused it.
type Made = Result<(CompletionHandle, u32, Polling), (&'static str, Errno)>;

fn plain(context: &DeviceContext, init: &ExtendedInit) -> Made {
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

fn extended(device: &Device, init: &ExtendedInit) -> Made {
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
    let polling = BatchPolling::new(made.handle, made.calls, clock);
    let polling = Box::new(polling);
    let polling = match init.fields == CompletionFields::default() {
        true => Polling::Batches(polling),
        false => Polling::Details(polling),
    };
    Ok((made.handle, made.entries, polling))
}

fn lacks_fields(context: &DeviceContext, errno: Errno) -> VerbsError {
    let what = "completion queue that tells these fields";
    let instead = "ask for fewer fields, or poll without them";
    context.lacks("ibv_create_cq_ex", errno, what, instead)
}

fn lacks_ignoring(context: &DeviceContext, errno: Errno) -> VerbsError {
    let what = "completion queue that ignores an overrun";
    let instead = "make one that reports an overrun, which each other constructor does";
    context.lacks("ibv_create_cq_ex", errno, what, instead)
}
