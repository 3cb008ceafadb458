//! A queue pair: one end of a reliable connection.
//!
//! Other kinds are types of their own, each of which has a [`QueuePair`] inside: unreliable
//! connections ([`unreliable`]), datagrams ([`datagram`]) and extended connections ([`xrc`]).
//!
//! A queue pair is made with its completion queues and its receive queue, and keeps them alive. It
//! is brought up in steps, so that receives are posted before anything can arrive: `build` (INIT) →
//! post receives → `connect` (RTR, RTS) → post sends. Posting takes `&mut`, so two threads cannot
//! interleave their batches.
//!
//! The send queue's room is counted here. A request is outstanding from its posting until
//! its owner [retires](QueuePair::retire_sends) it, when a signaled completion tells that it
//! and all before it are done. One place more than callers see is kept for the last request
//! of all, by which the queue is [drained](crate::Teardown).

pub(crate) mod address;
pub(crate) mod atomic;
mod change;
pub(crate) mod connection;
pub(crate) mod datagram;
pub(crate) mod datagram_buffer;
mod delegates;
pub(crate) mod global_header;
pub(crate) mod read;
pub(crate) mod receive_queue;
pub(crate) mod teardown;
pub(crate) mod unreliable;
mod window;
pub(crate) mod work_request;
pub(crate) mod xrc;

use std::marker::PhantomData;
use std::sync::Arc;

use connection::{ConnectionSettings, FirstSequence, LocalPort, RemoteEndpoint};
use datagram::Datagrams;
use ibex_base::fork;
use read::ReadLimits;
use receive_queue::{PostError, ReceiveQueue, SharedReceiveQueueObject};
use work_request::{PushError, ReceiveRequest, RequestTable, SendRequest};

use super::{
    abi::{
        SendWr,
        port::Mtu,
        queue_pair_kind::QueuePairKind,
        queue_pair_state::{AttributeMask, QueuePairAttributes, QueuePairState},
        work_id::{Operation, WorkId},
    },
    completion::{
        queue::{CompletionQueue, CompletionQueueObject},
        room::TakenRoom,
    },
    connect_error::{ConnectCause, ConnectError},
    device::{Device, RequestedSize},
    error::VerbsError,
    memory::{
        protection_domain::{Domain, ProtectionDomain},
        region::RegionAccess,
    },
    provider::{AtomicSupport, PairHandle, PostSend, QueriedPair, QueuePairInit, QueuePairSizes},
};

/// The description of a queue pair; ends in [`build`](QueuePairBuilder::build).
#[derive(Clone, Debug)]
pub struct QueuePairBuilder {
    domain: Arc<Domain>,
    send_completions: Arc<CompletionQueueObject>,
    receive_completions: Arc<CompletionQueueObject>,
    shared: Option<Arc<SharedReceiveQueueObject>>,
    sizes: QueuePairSizes,
    access: RegionAccess,
    pkey_index: u16,
    batch: usize,
}

impl QueuePairBuilder {
    /// Describes a queue pair with one completion queue for sends and receives, and a receive
    /// queue of its own.
    #[must_use]
    pub fn new(domain: &ProtectionDomain, completions: &CompletionQueue) -> Self {
        Self {
            domain: Arc::clone(domain.inner()),
            send_completions: Arc::clone(completions.inner()),
            receive_completions: Arc::clone(completions.inner()),
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

    /// Completes receives into another queue.
    #[must_use]
    pub fn receive_completions(mut self, completions: &CompletionQueue) -> Self {
        self.receive_completions = Arc::clone(completions.inner());
        self
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

    /// Sets the least number of sends outstanding at a time; a device may round up. Default: 128.
    #[must_use]
    pub fn send_requests(mut self, requests: u32) -> Self {
        self.sizes.send_requests = requests;
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

    /// Sets the number of pieces of one send. Default: 2, since a record over a ring's seam is two.
    #[must_use]
    pub fn send_entries(mut self, entries: u32) -> Self {
        self.sizes.send_entries = entries;
        self
    }

    /// Sets the number of bytes of an inline send. Default: 220. The queue pair takes as many as
    /// the device gives: devices differ widely, and refuse, rather than cut, a size that is too
    /// large for them.
    #[must_use]
    pub fn inline_bytes(mut self, bytes: u32) -> Self {
        self.sizes.inline_bytes = bytes;
        self
    }

    /// Sets the rights of the peer to memory that it has keys to. Default: nothing.
    #[must_use]
    pub fn remote_access(mut self, access: RegionAccess) -> Self {
        self.access = access;
        self
    }

    /// Sets the partition of the queue pair, by the place of the key in the port's table. Default:
    /// 0.
    #[must_use]
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// Sets the most sends that are posted with one call. Default: 64.
    #[must_use]
    pub fn batch(mut self, requests: usize) -> Self {
        self.batch = requests;
        self
    }

    /// Makes the queue pair and brings it to INIT, where it takes receives.
    ///
    /// # Errors
    /// [`VerbsError::OtherDevice`] if the protection domain and the queues are not of one open
    /// device, [`VerbsError::NoSuchPartitionIndex`] if the port has no such partition,
    /// [`VerbsError::NoCompletionRoom`] or [`VerbsError::UncountedCompletions`] by a completion queue
    /// that [ignores an overrun](CompletionQueue::ignoring_overrun). Otherwise the refusal of the
    /// device, with its limit if a limit is the cause.
    pub fn build(self, port: u8, settings: ConnectionSettings) -> Result<QueuePair, VerbsError> {
        self.build_connected(QueuePairKind::Reliable, port, settings)
    }

    /// Makes a queue pair of a kind that is connected, and brings it to INIT.
    fn build_connected(
        self,
        kind: QueuePairKind,
        port: u8,
        settings: ConnectionSettings,
    ) -> Result<QueuePair, VerbsError> {
        self.check_partition(port)?;
        let (attributes, mask) = settings.to_init(port, self.pkey_index, self.access.bits());
        let mut pair = self.create(kind, settings)?;
        pair.modify(&attributes, mask)?;
        Ok(pair)
    }

    fn check_partition(&self, port: u8) -> Result<(), VerbsError> {
        Device::of(&self.domain.context).check_pkey_index(port, self.pkey_index)
    }

    /// Makes a queue pair, which is at RESET.
    fn create(
        self,
        kind: QueuePairKind,
        settings: ConnectionSettings,
    ) -> Result<QueuePair, VerbsError> {
        let context = &self.domain.context;
        self.check_devices()?;
        let mut init = QueuePairInit {
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
        let (sends, receives) = (init.sizes.send_requests, init.sizes.receive_requests);
        let room = self.take_room(sends, receives)?;
        let created = loop {
            // SAFETY: domain, completion queues and shared receive queue are alive, and of one
            // context.
            match unsafe { context.provider().create_pair(self.domain.handle, &init) } {
                // A device answers EINVAL to an inline size that it does not support, and reports
                // no limit. So ask for less until it fits.
                Err(rustix::io::Errno::INVAL) if init.sizes.inline_bytes > 0 => {
                    init.sizes.inline_bytes /= 2;
                }
                other => break other,
            }
        };
        let created = created.map_err(|errno| {
            let limits = context.attributes();
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
        let mut sizes = created.sizes;
        // A device may round up, but room was taken for what was asked.
        if self.send_completions.room.is_some() {
            sizes.send_requests = sizes.send_requests.min(sends);
        }
        if self.receive_completions.room.is_some() {
            sizes.receive_requests = sizes.receive_requests.min(receives);
        }
        let inner = Arc::new(QueuePairObject {
            handle: created.handle,
            _room: room,
            shared: self.shared,
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
        Ok(QueuePair {
            kind,
            number: created.number,
            state: QueuePairState::Reset,
            sizes,
            settings,
            local: None,
            remote: None,
            reads: settings.read_limits(inner.domain.context.attributes()),
            post: inner.domain.context.opened().hot.post_send,
            table: RequestTable::new(self.batch, sizes.send_entries as usize),
            capacity: sizes.send_requests.saturating_sub(1),
            outstanding: 0,
            receives,
            inner,
            datagrams: None,
        })
    }

    /// Takes room for the completions of sends and of receives, where it is counted.
    fn take_room(&self, sends: u32, receives: u32) -> Result<[Option<TakenRoom>; 2], VerbsError> {
        if self.shared.is_some() {
            TakenRoom::refuse_shared(&self.receive_completions)?;
        }
        let (to_sends, to_receives) = (&self.send_completions, &self.receive_completions);
        if Arc::ptr_eq(to_sends, to_receives) {
            let both = TakenRoom::take(to_sends, sends.saturating_add(receives))?;
            return Ok([both, None]);
        }
        Ok([
            TakenRoom::take(to_sends, sends)?,
            TakenRoom::take(to_receives, receives)?,
        ])
    }

    /// Checks that domain and queues are of one context, as `ibv_create_qp` takes for granted.
    fn check_devices(&self) -> Result<(), VerbsError> {
        let shared = self.shared.as_ref();
        let parts = [
            (
                "completion queue of sends",
                Some(&self.send_completions.context),
            ),
            (
                "completion queue of receives",
                Some(&self.receive_completions.context),
            ),
            (
                "shared receive queue",
                shared.map(|shared| shared.context()),
            ),
        ];
        for (object, context) in parts {
            if let Some(context) = context {
                self.domain.context.check_same(object, context)?;
            }
        }
        Ok(())
    }
}

/// The two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Receive,
}

/// An end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    inner: Arc<QueuePairObject>,
    kind: QueuePairKind,
    number: u32,
    sizes: QueuePairSizes,

    // Connection.
    state: QueuePairState,
    settings: ConnectionSettings,
    local: Option<LocalPort>,
    remote: Option<RemoteEndpoint>,
    /// Reads and atomics at a time, as the two ends allow.
    reads: ReadLimits,

    // Sending.
    post: PostSend,
    table: RequestTable<SendWr>,
    /// Requests that callers may have outstanding; the queue holds one more.
    capacity: u32,
    outstanding: u32,

    // Receiving.
    receives: Option<ReceiveQueue>,

    /// Behind all else that keeps `inner` alive, since address handles go after the queue pair.
    datagrams: Option<Box<Datagrams>>,
}

/// The object itself, which an own receive queue keeps alive too.
#[derive(Debug)]
pub(crate) struct QueuePairObject {
    pub(crate) handle: PairHandle,
    shared: Option<Arc<SharedReceiveQueueObject>>,
    pub(crate) domain: Arc<Domain>,
    /// The room of its completion queues, which is free when the queue pair is destroyed.
    _room: [Option<TakenRoom>; 2],
    // Completion queues.
    send_completions: Arc<CompletionQueueObject>,
    receive_completions: Arc<CompletionQueueObject>,
}

impl QueuePair {
    /// Returns the queue pair's number, 24 bits, by which completions and events name it.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the state that the queue pair was last brought to. An error moves the queue pair to
    /// ERR without notice; only a failed completion shows that.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// Returns the number of bytes of an inline send, as the device gave them.
    #[inline]
    #[must_use]
    pub fn max_inline_bytes(&self) -> u32 {
        self.sizes.inline_bytes
    }

    /// Returns the number of pieces of one send, as the device gave them.
    #[inline]
    #[must_use]
    pub fn max_send_entries(&self) -> u32 {
        self.sizes.send_entries
    }

    /// Returns the number of pieces of one receive; 0 with a shared receive queue.
    #[must_use]
    pub fn max_receive_entries(&self) -> u32 {
        self.sizes.receive_entries
    }

    /// Returns its own receive queue; `None` if it takes from a shared one.
    #[inline]
    pub fn receive_queue(&mut self) -> Option<&mut ReceiveQueue> {
        self.receives.as_mut()
    }

    /// Returns whether it takes receives at all, of its own queue or of a shared one.
    pub(crate) fn receives(&self) -> bool {
        self.kind != QueuePairKind::XrcSend
    }

    /// Returns whether it takes from a shared receive queue.
    #[inline]
    #[must_use]
    pub fn has_shared_receives(&self) -> bool {
        self.inner.shared.is_some()
    }

    /// Returns the facts that the peer has to know.
    #[must_use]
    pub fn endpoint(&self, first: FirstSequence, local: &LocalPort) -> RemoteEndpoint {
        RemoteEndpoint::of(self.number, first, local)
    }

    /// Returns how many reads and atomics this end does and serves at a time, to be told to the peer
    /// if either end uses them.
    #[must_use]
    pub fn read_limits(&self) -> ReadLimits {
        self.reads
    }

    /// Takes over what the peer has told of its [`read_limits`](Self::read_limits), before
    /// [`connect`](Self::connect). Without it, this end takes the peer's for its own.
    pub fn set_peer_read_limits(&mut self, peer: ReadLimits) {
        self.reads = self.reads.with_peer(peer);
    }

    /// Connects the queue pair: INIT → RTR → RTS. Returns the path MTU.
    ///
    /// `first` is what the peer was told in [`endpoint`](Self::endpoint). The peer may
    /// send as soon as this end is at RTR, so receives are posted before.
    ///
    /// # Errors
    /// [`VerbsError`]: the ends do not fit, or [`ConnectError`] with all attributes. The
    /// queue pair has to be dropped then.
    pub fn connect(
        &mut self,
        first: FirstSequence,
        local: LocalPort,
        remote: RemoteEndpoint,
    ) -> Result<Mtu, VerbsError> {
        remote.check_against(&local)?;
        let mtu = self
            .settings
            .mtu_between(local.attributes.active_mtu, remote.mtu)?;
        self.local = Some(local);
        self.remote = Some(remote);
        let ReadLimits { depth, resources } = self.reads;
        let (attributes, mask) = self.settings.to_receive(&local, &remote, mtu, resources);
        self.modify(&attributes, self.kind.attributes_of(mask))?;
        let (attributes, mask) = self.settings.to_send(first, depth);
        self.modify(&attributes, self.kind.attributes_of(mask))?;
        Ok(mtu)
    }

    /// Queries the queue pair
    /// ([`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)). Takes a
    /// system call. Its state is the device's: unlike [`state`](Self::state) it also is ERR after an
    /// error.
    ///
    /// # Errors
    /// [`VerbsError`] if the device is gone.
    pub fn query(&self) -> Result<QueriedPair, VerbsError> {
        let context = &self.inner.domain.context;
        // SAFETY: the queue pair is alive while `inner` is.
        unsafe { context.provider().query_pair(self.inner.handle) }.map_err(|errno| {
            let consequence = "what the device knows of the queue pair stays unknown";
            context.failed("ibv_query_qp", errno, consequence)
        })
    }

    /// Moves the queue pair to ERR: everything outstanding is flushed, and nothing goes out any
    /// more.
    ///
    /// # Errors
    /// [`ConnectError`] if the device refuses, which a device that is gone does.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        self.modify(
            &QueuePairAttributes::to(QueuePairState::Error),
            AttributeMask::default(),
        )
    }

    /// Returns the number of sends that may still be posted.
    #[inline]
    #[must_use]
    pub fn send_room(&self) -> u32 {
        self.capacity - self.outstanding
    }

    /// Returns the number of sends that are posted and not retired.
    #[inline]
    #[must_use]
    pub fn outstanding_sends(&self) -> u32 {
        self.outstanding
    }

    /// Takes notice that this many sends, the oldest ones, are done. A signaled completion stands
    /// for its request and all unsignaled ones before it.
    ///
    /// # Panics
    /// If fewer sends were outstanding.
    #[inline]
    pub fn retire_sends(&mut self, sends: u32) {
        self.outstanding = self
            .outstanding
            .checked_sub(sends)
            .expect("no more sends complete than were posted");
    }

    /// Begins a batch of sends.
    #[inline]
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn send_batch<'memory>(&mut self) -> SendBatch<'_, 'memory> {
        self.table.clear();
        SendBatch {
            pair: self,
            memory: PhantomData,
        }
    }

    #[cfg(feature = "rdma-sys")]
    pub(crate) fn handle(&self) -> PairHandle {
        self.inner.handle
    }

    #[cfg(feature = "rdma-sys")]
    pub(crate) fn context(&self) -> &crate::device::DeviceContext {
        &self.inner.domain.context
    }

    /// Posts the last requests of all, into the places kept for them: with the queue pair
    /// in ERR they are flushed after everything before them. Returns whether there is one of the
    /// send queue: a datagram needs an address, and where none was ever sent, nothing is to drain.
    pub(crate) fn post_drain(&mut self, generation: u32) -> Result<bool, PostError> {
        let id = self.drain_id(Queue::Receive, generation);
        if let Some(receives) = &mut self.receives {
            receives.post_beyond_capacity(&ReceiveRequest::new(id, &[]))?;
        }
        let id = self.drain_id(Queue::Send, generation);
        self.table.clear();
        self.table
            .push_send(&SendRequest::send(id, &[]).signaled(), 0)
            .expect("an empty request fits into an empty table");
        if let Some(datagrams) = &self.datagrams {
            let Some(address) = &datagrams.last else {
                return Ok(false);
            };
            let last = self.table.last_mut().expect("it was just pushed");
            last.set_datagram(address.handle.as_ptr(), self.number, 0);
        }
        self.post_table().map(|_| true)
    }

    /// Returns the identity of the last request of one of its queues. A number has 24 bits, so
    /// there is one to spare for the queue.
    pub(crate) fn drain_id(&self, queue: Queue, generation: u32) -> WorkId {
        let queue = match queue {
            Queue::Send => 0,
            Queue::Receive => 1 << 31,
        };
        WorkId::new(Operation::Drain, self.number | queue, generation)
    }

    #[inline(always)]
    fn post_table(&mut self) -> Result<u32, PostError> {
        let requests = self.table.len();
        if requests == 0 {
            return Ok(0);
        }
        let head = self.table.link();
        let mut refused = std::ptr::null_mut();
        // SAFETY:
        // 1. The queue pair is alive while `inner` is.
        // 2. `head` is a list of `requests` requests with their entries, in the table.
        // 3. The memory is mapped now (rule 2 of `work_request`); what is not inline is
        //    registered, and deregistered before it is unmapped (`memory::region`).
        let status = unsafe { (self.post)(self.inner.handle.as_ptr(), head, &mut refused) };
        let accepted = if status == 0 {
            requests
        } else {
            self.table.accepted(refused)
        };
        PostError::check("ibv_post_send", status, requests, accepted)
    }

    fn modify(
        &mut self,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), VerbsError> {
        let mask = mask | AttributeMask::STATE;
        let cause = match self
            .kind
            .check_transition(self.state, attributes.state, mask)
        {
            Err(illegal) => ConnectCause::Illegal(illegal),
            Ok(()) => {
                let provider = self.inner.domain.context.provider();
                // SAFETY: the queue pair is alive while `inner` is.
                match unsafe { provider.modify_pair(self.inner.handle, attributes, mask) } {
                    Ok(()) => {
                        self.state = attributes.state;
                        return Ok(());
                    }
                    Err(errno) => ConnectCause::Refused(errno),
                }
            }
        };
        Err(VerbsError::Connect(Box::new(ConnectError {
            device: self.inner.domain.context.name().to_owned(),
            queue_pair: self.number,
            from: self.state,
            attributes: *attributes,
            mask,
            local: self.local,
            remote: self.remote,
            cause,
        })))
    }
}

impl Drop for QueuePairObject {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let context = &self.domain.context;
        // SAFETY: only its own receive queue is made from a queue pair, and that queue held an
        // `Arc` of it. Fields hold the objects that the queue pair was made from, and are dropped
        // after it.
        let destroy = || unsafe { context.provider().destroy_pair(self.handle) };
        let (sends, receives) = (&self.send_completions, &self.receive_completions);
        let destroyed = sends.while_undrained(|| match Arc::ptr_eq(sends, receives) {
            true => destroy(),
            false => receives.while_undrained(destroy),
        });
        if let Err(errno) = destroyed {
            context.undestroyed("ibv_destroy_qp", errno);
        }
    }
}

/// Sends that are about to be posted, with one call. Dropped, it posts nothing.
///
/// The batch borrows the memory to send until it is posted:
///
/// ```compile_fail,E0505
/// # use ibex_verbs::*;
/// fn late(pair: &mut QueuePair, region: MemoryRegion<AnonymousMemory>, id: WorkId) {
///     let entries = [region.entry(0..8)];
///     let mut batch = pair.send_batch();
///     batch.push(&SendRequest::send(id, &entries)).unwrap();
///     drop(region);
///     batch.post().unwrap();
/// }
/// ```
///
/// There is only one batch at a time:
///
/// ```compile_fail,E0499
/// # use ibex_verbs::*;
/// fn two(pair: &mut QueuePair) {
///     let one = pair.send_batch();
///     let other = pair.send_batch();
///     one.post().unwrap();
///     other.post().unwrap();
/// }
/// ```
#[derive(Debug)]
pub struct SendBatch<'pair, 'memory> {
    pair: &'pair mut QueuePair,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> SendBatch<'_, 'memory> {
    /// Adds a request.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was.
    #[inline(always)]
    pub fn push(&mut self, request: &SendRequest<'_, 'memory>) -> Result<(), PushError> {
        if self.pair.send_room() <= self.pair.table.len() as u32 {
            return Err(PushError::QueueFull {
                capacity: self.pair.capacity,
            });
        }
        self.pair
            .table
            .push_send(request, self.pair.sizes.inline_bytes)
    }

    /// Returns the table for a read or an atomic, if the queue has room for one and the connection
    /// carries some.
    fn table_of_reads(&mut self) -> Result<&mut RequestTable<SendWr>, PushError> {
        if self.pair.reads.depth == 0 {
            return Err(PushError::NoReads);
        }
        self.table_with_room()
    }

    fn table_with_room(&mut self) -> Result<&mut RequestTable<SendWr>, PushError> {
        let capacity = self.pair.capacity;
        match self.pair.send_room() > self.pair.table.len() as u32 {
            true => Ok(&mut self.pair.table),
            false => Err(PushError::QueueFull { capacity }),
        }
    }

    fn atomics(&self) -> AtomicSupport {
        self.pair.inner.domain.context.attributes().atomics
    }

    /// Returns the number of requests in the batch.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.pair.table.len()
    }

    /// Returns whether the batch is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts the requests of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    #[inline]
    pub fn post(self) -> Result<u32, PostError> {
        let outcome = self.pair.post_table();
        self.pair.outstanding += match &outcome {
            Ok(posted) => *posted,
            Err(error) => error.accepted,
        };
        outcome
    }
}
