//! A receive queue: memory that is posted for messages, shared by queue pairs or of one alone.
//!
//! One type serves both kinds, because not every device has shared receive queues (in rdma-core 65,
//! efa, erdma, ionic and mana have none). Their owner refills both in the same way, in batches, and
//! learns from completions which receives were used. The queue counts its receives, so its limit is
//! known before the device is asked.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use rustix::io::Errno;

use super::{QueuePairObject, request_table::RequestTable};
use crate::device::{DeviceContext, new_tag};
use crate::provider::{
    CompletionHandle, PostReceive, SharedReceiveHandle, SharedReceiveInit, XrcDomainHandle,
};
use crate::{
    ProtectionDomain, PushError, ReceiveRequest, SharedReceiveAttributes, VerbsError, abi::RecvWr,
    device::requested_size::RequestedSize, memory::protection_domain::Domain,
};

/// A queue of receives, shared by queue pairs or of one alone.
#[derive(Debug)]
pub struct ReceiveQueue {
    target: ReceiveQueueOwner,
    post: PostReceive,
    table: RequestTable<RecvWr>,
    capacity: u32,
    outstanding: u32,
}

/// The owner of a receive queue.
#[derive(Clone, Debug)]
enum ReceiveQueueOwner {
    Shared(Arc<SharedReceiveQueueObject>),
    Pair(Arc<QueuePairObject>),
}

/// The objects that a queue of extended connections was made with.
type Kept = Box<dyn Any + Send + Sync>;

/// The part of a shared receive queue that its queue pairs keep alive.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueueObject {
    pub(crate) handle: SharedReceiveHandle,
    tag: u64,
    domain: Arc<Domain>,
    _kept: Option<Kept>,
}

impl SharedReceiveQueueObject {
    /// The open device that it belongs to.
    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.domain.context
    }
}

/// The most receives that are posted with one call.
pub const RECEIVE_BATCH: usize = 64;

impl ReceiveQueue {
    /// Makes a queue for all queue pairs of a protection domain that are made with it.
    ///
    /// # Errors
    /// [`VerbsError`], with the device's limit if a limit is the cause; a device without shared
    /// receive queues has the limit 0.
    pub fn shared(
        domain: &ProtectionDomain,
        requests: u32,
        entries: u32,
    ) -> Result<Self, VerbsError> {
        let (queue, _) = Self::make(domain, requests, entries, None)?;
        Ok(queue)
    }

    /// Makes a shared queue; returns its number too. One for extended connections keeps alive what it
    /// was made with.
    pub(super) fn make(
        domain: &ProtectionDomain,
        requests: u32,
        entries: u32,
        xrc: Option<((XrcDomainHandle, CompletionHandle), Kept)>,
    ) -> Result<(Self, u32), VerbsError> {
        let domain = Arc::clone(&domain.inner);
        let context = Arc::clone(&domain.context);
        let tag = new_tag();
        let (xrc, kept) = xrc.unzip();
        let init = SharedReceiveInit {
            domain: domain.handle,
            requests,
            entries,
            tag,
            xrc,
        };
        let limits = &context.attributes;
        let limits = [
            RequestedSize::new(
                "a shared receive queue",
                1,
                limits.max_shared_receive_queues,
                "it: use the queue pairs' own receive queues",
            ),
            RequestedSize::new(
                "a shared receive queue of that depth",
                requests,
                limits.max_shared_receive_requests,
                "its depth (receive_buffers)",
            ),
            RequestedSize::new(
                "a shared receive queue with that many scatter entries",
                entries,
                limits.max_shared_receive_entries,
                "the entries of one receive",
            ),
        ];
        // SAFETY: the domain is alive, and so are the others, of one context.
        let made = unsafe { context.provider().create_shared_receive(&init) };
        let call = match xrc {
            None => "ibv_create_srq",
            Some(_) => "ibv_create_srq_ex",
        };
        let made = made.map_err(|errno| context.refused(call, errno, &limits))?;
        let queue = Self {
            target: ReceiveQueueOwner::Shared(Arc::new(SharedReceiveQueueObject {
                handle: made.handle,
                tag,
                domain,
                _kept: kept,
            })),
            post: context.opened.hot.post_shared_receive,
            table: RequestTable::new(RECEIVE_BATCH, made.entries as usize),
            capacity: made.requests,
            outstanding: 0,
        };
        Ok((queue, made.number))
    }

    /// Makes the own queue of a queue pair.
    pub(crate) fn of_pair(pair: &Arc<QueuePairObject>, capacity: u32, entries: u32) -> Self {
        Self {
            target: ReceiveQueueOwner::Pair(Arc::clone(pair)),
            post: pair.domain.context.opened.hot.post_receive,
            table: RequestTable::new(RECEIVE_BATCH, entries as usize),
            capacity,
            outstanding: 0,
        }
    }

    /// Returns how many receives it holds, at least as many as were asked for.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of receives that are posted and not [retired](Self::retire).
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Notes that this many receives have completed, including failed ones.
    ///
    /// # Panics
    /// If fewer receives were outstanding.
    #[inline]
    pub fn retire(&mut self, receives: u32) {
        self.outstanding = self
            .outstanding
            .checked_sub(receives)
            .expect("no more receives complete than were posted");
    }

    /// Begins a batch of receives.
    #[inline]
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn batch<'memory>(&mut self) -> ReceiveBatch<'_, 'memory> {
        self.table.clear();
        ReceiveBatch {
            queue: self,
            memory: PhantomData,
        }
    }

    /// Posts one request into the place that callers are not notified of.
    pub(crate) fn post_beyond_capacity(
        &mut self,
        request: &ReceiveRequest<'_, '_>,
    ) -> Result<(), PostError> {
        self.table.clear();
        self.table
            .push_receive(request)
            .expect("a request without entries fits into an empty table");
        self.post_table().map(|_| ())
    }

    #[inline]
    fn post_table(&mut self) -> Result<u32, PostError> {
        let target = match &self.target {
            ReceiveQueueOwner::Shared(shared) => shared.handle.as_ptr(),
            ReceiveQueueOwner::Pair(pair) => pair.handle.as_ptr(),
        };
        let call = || match &self.target {
            ReceiveQueueOwner::Shared(_) => "ibv_post_srq_recv",
            ReceiveQueueOwner::Pair(_) => "ibv_post_recv",
        };
        // SAFETY: the queue is alive: `target` holds it, or the queue pair that it is part of. The
        // memory is registered (`push` checked).
        unsafe { self.table.post(self.post, target, call) }
    }

    /// Asks for one event when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    ///
    /// # Panics
    /// If it is a queue pair's own queue, which has no such event.
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        let shared = self.shared_inner().expect("a shared receive queue");
        let context = &shared.domain.context;
        let provider = context.provider();
        // SAFETY: the queue is alive.
        let armed = unsafe { provider.arm_shared_receive_limit(shared.handle, limit) };
        let consequence = "running out of receives is not announced";
        armed.map_err(context.failed("ibv_modify_srq", consequence))
    }

    /// Queries a shared queue
    /// ([`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html)).
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    ///
    /// # Panics
    /// If it is a queue pair's own queue: query the queue pair.
    pub fn query(&self) -> Result<SharedReceiveAttributes, VerbsError> {
        let shared = self.shared_inner().expect("a shared receive queue");
        let context = shared.context();
        // SAFETY: the queue is alive.
        let queried = unsafe { context.provider().query_shared_receive(shared.handle) };
        let consequence = "what the device knows of the queue stays unknown";
        queried.map_err(context.failed("ibv_query_srq", consequence))
    }

    /// Returns the number by which asynchronous events name it; `None` for a queue pair's own.
    #[must_use]
    pub fn tag(&self) -> Option<u64> {
        self.shared_inner().map(|shared| shared.tag)
    }

    pub(crate) fn shared_inner(&self) -> Option<&Arc<SharedReceiveQueueObject>> {
        match &self.target {
            ReceiveQueueOwner::Shared(shared) => Some(shared),
            ReceiveQueueOwner::Pair(_) => None,
        }
    }
}

impl Drop for SharedReceiveQueueObject {
    fn drop(&mut self) {
        // SAFETY: queue pairs on this queue held an `Arc` of it, so all are destroyed.
        unsafe { self.domain.context.destroy(self.handle) };
    }
}

/// Receives that are about to be posted, with one call. Dropped, it posts nothing.
#[derive(Debug)]
pub struct ReceiveBatch<'queue, 'memory> {
    queue: &'queue mut ReceiveQueue,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> ReceiveBatch<'_, 'memory> {
    /// Adds a receive to the batch.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was.
    #[inline]
    pub fn push(&mut self, request: &ReceiveRequest<'_, 'memory>) -> Result<(), PushError> {
        let pending = self.queue.table.len() as u32;
        if self.queue.outstanding + pending >= self.queue.capacity {
            return Err(PushError::QueueFull {
                capacity: self.queue.capacity,
            });
        }
        self.queue.table.push_receive(request)
    }

    /// Posts the receives of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    #[inline]
    pub fn post(self) -> Result<u32, PostError> {
        let outcome = self.queue.post_table();
        self.queue.outstanding += match &outcome {
            Ok(posted) => *posted,
            Err(error) => error.accepted,
        };
        outcome
    }
}

/// The device refused a batch from some request on. A dead queue pair does not refuse
/// requests: it flushes them.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{call} refused request {} of {requests}: {source}; {accepted} are posted and the rest is \
     not{}",
    accepted + 1,
    self.advice()
)]
pub struct PostError {
    /// The name of the verb that failed.
    pub call: &'static str,
    /// The number of requests of the batch.
    pub requests: u32,
    /// The number of requests, from the first on, that were posted.
    pub accepted: u32,
    /// The errno that the device gave.
    pub r#source: Errno,
}

ibex_base::debug_as_display!(PostError);

impl PostError {
    /// The commonest cause, if the errno has one.
    fn advice(&self) -> &'static str {
        match (self.call, self.source) {
            ("ibv_post_send", Errno::INVAL) => {
                "; a queue pair that is not connected refuses sends: call `QueuePair::connect` first"
            }
            _ => "",
        }
    }

    #[inline]
    pub(crate) fn check(
        call: impl FnOnce() -> &'static str,
        status: i32,
        requests: usize,
        accepted: usize,
    ) -> Result<u32, Self> {
        if status == 0 {
            return Ok(accepted as u32);
        }
        Err(Self {
            call: call(),
            requests: requests as u32,
            accepted: accepted as u32,
            // Verbs return the errno; some old providers return its negative, or -1.
            source: Errno::from_raw_os_error(status.saturating_abs().clamp(1, 4095)),
        })
    }
}
