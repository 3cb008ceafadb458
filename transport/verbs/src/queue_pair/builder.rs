//! The description of a queue pair, and its making.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{
    AnyPair, QueuePairObject, receive_queue::SharedReceiveQueueObject, request_table::RequestTable,
    state::PairLifecycle,
};
use crate::provider::{QueuePairInit, QueuePairSizes};
use crate::{
    CompletionQueue, ConnectionSettings, Device, ProtectionDomain, QueuePair, QueuePairKind,
    QueuePairState, ReceiveQueue, RegionAccess, VerbsError,
    abi::queue_pair_attributes::QueuePairAttributes, completion::queue::CompletionQueueObject,
    device::requested_size::RequestedSize, memory::protection_domain::Domain,
};

/// The description of a queue pair; ends in [`build`](QueuePairBuilder::build).
#[derive(Clone, Debug)]
pub struct QueuePairBuilder {
    pub(super) domain: Arc<Domain>,
    pub(super) send_completions: Arc<CompletionQueueObject>,
    pub(super) receive_completions: Arc<CompletionQueueObject>,
    pub(super) shared: Option<Arc<SharedReceiveQueueObject>>,
    pub(super) sizes: QueuePairSizes,
    pub(super) access: RegionAccess,
    pub(super) pkey_index: u16,
    pub(super) batch: usize,
}

impl QueuePairBuilder {
    /// Describes a queue pair with one completion queue for sends and receives, and a receive
    /// queue of its own.
    #[must_use]
    pub fn new(domain: &ProtectionDomain, completions: &CompletionQueue) -> Self {
        Self {
            domain: Arc::clone(&domain.inner),
            send_completions: Arc::clone(&completions.inner),
            receive_completions: Arc::clone(&completions.inner),
            shared: None,
            sizes: QueuePairSizes {
                send_requests: 128,
                receive_requests: 128,
                send_entries: 2,
                receive_entries: 1,
                inline_bytes: 220,
            },
            access: RegionAccess::SEND,
            pkey_index: 0,
            batch: 64,
        }
    }

    setters! {
        /// Completes receives into another queue.
        pub fn receive_completions(completions: &CompletionQueue):
            receive_completions = Arc::clone(&completions.inner);
        /// Sets the least number of sends outstanding at a time; a device may round up. Default: 128.
        pub fn send_requests(requests: u32): sizes.send_requests = requests;
        /// Sets the number of pieces of one send. Default: 2, since a record over a ring's seam is two.
        pub fn send_entries(entries: u32): sizes.send_entries = entries;
        /// Sets the number of bytes of an inline send. Default: 220. The queue pair takes as many as
        /// the device gives: devices differ widely, and refuse, rather than cut, a size that is too
        /// large for them.
        pub fn inline_bytes(bytes: u32): sizes.inline_bytes = bytes;
        /// Sets the rights of the peer to memory that it has keys to. Default: nothing.
        pub fn remote_access(access: RegionAccess): access = access;
        /// Sets the partition of the queue pair, by the place of the key in the port's table. Default:
        /// 0.
        pub fn pkey_index(index: u16): pkey_index = index;
        /// Sets the most sends that are posted with one call. Default: 64.
        pub fn batch(requests: usize): batch = requests;
    }

    /// Takes receives from a shared queue.
    ///
    /// # Panics
    /// If that queue is another queue pair's own.
    #[must_use]
    pub fn shared_receive_queue(mut self, queue: &ReceiveQueue) -> Self {
        let shared = queue.shared_inner().expect("a shared receive queue");
        self.shared = Some(Arc::clone(shared));
        self
    }

    /// Sets the number of receives outstanding at a time, and the pieces of one; without a shared
    /// queue only. Default: 128 of one piece.
    #[must_use]
    pub fn receives(mut self, requests: u32, entries: u32) -> Self {
        self.sizes.receive_requests = requests;
        self.sizes.receive_entries = entries;
        self
    }

    /// Makes the queue pair and brings it to INIT, where it takes receives.
    ///
    /// # Errors
    /// [`VerbsError::OtherDevice`] if the protection domain and the queues are not of one open
    /// device, [`VerbsError::NoSuchPartitionIndex`] if the port has no such partition. Otherwise
    /// the refusal of the device, with its limit if a limit is the cause.
    pub fn build(self, port: u8, settings: ConnectionSettings) -> Result<QueuePair, VerbsError> {
        self.build_kind(QueuePairKind::Reliable, port, 0, settings)
    }

    /// Makes a queue pair and brings it to INIT; `q_key` is for datagrams alone.
    pub(super) fn build_kind<K>(
        self,
        kind: QueuePairKind,
        port: u8,
        q_key: u32,
        settings: ConnectionSettings,
    ) -> Result<QueuePair<K>, VerbsError> {
        Device::of(&self.domain.context).check_pkey_index(port, self.pkey_index)?;
        let attributes = QueuePairAttributes {
            port,
            pkey_index: self.pkey_index,
            access_flags: self.access.bits(),
            q_key,
            ..QueuePairAttributes::to(QueuePairState::Init)
        };
        let mut any = self.create(kind, settings)?;
        any.modify(&attributes)?;
        let kind = PhantomData;
        Ok(QueuePair { any, kind })
    }

    /// Makes a queue pair, which is at RESET.
    fn create(
        self,
        kind: QueuePairKind,
        settings: ConnectionSettings,
    ) -> Result<AnyPair, VerbsError> {
        let context = &self.domain.context;
        self.check_devices()?;
        let mut init = QueuePairInit {
            domain: self.domain.handle,
            kind,
            send_queue: self.send_completions.handle,
            receive_queue: self.receive_completions.handle,
            shared: self.shared.as_ref().map(|shared| shared.handle),
            sizes: QueuePairSizes {
                // `Teardown` needs one more request of each kind.
                send_requests: self.sizes.send_requests.saturating_add(1),
                receive_requests: self.sizes.receive_requests.saturating_add(1),
                ..self.sizes
            },
        };
        let has_own = init.shared.is_none() && kind != QueuePairKind::XrcSend;
        if !has_own {
            // mlx5 checks these sizes against its limits even when they have no effect.
            init.sizes.receive_requests = 0;
            init.sizes.receive_entries = 0;
        }
        let created = loop {
            // SAFETY: domain, completion queues and shared receive queue are alive, and of one
            // context.
            match unsafe { context.provider().create_pair(&init) } {
                // A device answers EINVAL to an inline size that it does not support, and reports
                // no limit. So ask for less until it fits.
                Err(rustix::io::Errno::INVAL) if init.sizes.inline_bytes > 0 => {
                    init.sizes.inline_bytes /= 2;
                }
                other => break other,
            }
        };
        let created = created.map_err(|errno| {
            let limits = &context.attributes;
            context.refused(
                "ibv_create_qp",
                errno,
                &[
                    RequestedSize::new(
                        "a queue pair with that many sends",
                        init.sizes.send_requests,
                        limits.max_queue_pair_requests,
                        "send_requests",
                    ),
                    RequestedSize::new(
                        "a queue pair with that many receives",
                        init.sizes.receive_requests,
                        limits.max_queue_pair_requests,
                        "its receives (session_credit)",
                    ),
                    RequestedSize::new(
                        "a queue pair with that many scatter entries",
                        init.sizes.send_entries.max(init.sizes.receive_entries),
                        limits.max_entries,
                        "send_entries or the entries of receives",
                    ),
                ],
            )
        })?;
        let sizes = created.sizes;
        let inner = Arc::new(QueuePairObject {
            handle: created.handle,
            _shared: self.shared,
            send_completions: self.send_completions,
            receive_completions: self.receive_completions,
            domain: self.domain,
        });
        let receives = has_own.then(|| {
            ReceiveQueue::of_pair(
                &inner,
                sizes.receive_requests.saturating_sub(1),
                sizes.receive_entries,
            )
        });
        Ok(AnyPair {
            state: PairLifecycle::new(created.handle, created.number, kind),
            sizes,
            settings,
            reads: settings.read_limits(&inner.domain.context.attributes),
            post: inner.domain.context.opened.hot.post_send,
            table: RequestTable::new(self.batch, sizes.send_entries as usize),
            capacity: sizes.send_requests.saturating_sub(1),
            outstanding: 0,
            receives,
            inner,
            #[cfg(feature = "all")]
            datagrams: None,
        })
    }

    /// Checks that domain and queues are of one context, as `ibv_create_qp` takes for granted.
    fn check_devices(&self) -> Result<(), VerbsError> {
        let ours = &self.domain.context;
        let sends = &self.send_completions.context;
        ours.check_same("completion queue of sends", sends)?;
        let receives = &self.receive_completions.context;
        ours.check_same("completion queue of receives", receives)?;
        match &self.shared {
            Some(shared) => ours.check_same("shared receive queue", shared.context()),
            None => Ok(()),
        }
    }
}
