//! Extended reliable connections (XRC): one connection between two processes' devices serves many
//! receive queues.
//!
//! The two ends of a connection differ. The sending end ([`XrcSendQueuePair`]) has a send queue alone,
//! and each of its requests names a receive queue at the peer by number. The receiving end
//! ([`XrcReceiveQueuePair`]) has no queues at all: what arrives takes a receive of the
//! [`XrcReceiveQueue`] that it names, and completes there. Both belong to an [`XrcDomain`], which
//! processes share by a file; so a process that receives need not be the one that has made the
//! receiving end.
//!
//! ```text
//!  sender                                        receivers, of one file
//!  XrcSendQueuePair ═════ connection ═════ XrcReceiveQueuePair ── XrcDomain
//!    each request names ──────────────────▶ XrcReceiveQueue 7 ───────┤
//!    a queue by number  ──────────────────▶ XrcReceiveQueue 9 ───────┘
//! ```
//!
//! Soft-RoCE and most other devices have none of this: [`VerbsError::Unsupported`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::{kind::XrcSend, state::PairLifecycle};
use crate::{
    CompletionQueue, ConnectionSettings, Device, FirstSequence, LocalPort, Mtu, ProtectionDomain,
    PushError, QueriedPair, QueuePair, QueuePairBuilder, QueuePairKind, QueuePairState,
    ReadRequest, ReceiveBatch, ReceiveQueue, RegionAccess, RemoteEndpoint, SendBatch, SendRequest,
    VerbsError, abi::queue_pair_attributes::QueuePairAttributes, device::DeviceContext,
    provider::XrcDomainHandle,
};

/// A domain of extended connections. Clones are the same one.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    pub(crate) inner: Arc<OpenXrcDomain>,
}

/// The part of a domain that the objects made from it keep alive.
#[derive(Debug)]
pub(crate) struct OpenXrcDomain {
    pub(crate) handle: XrcDomainHandle,
    context: Arc<DeviceContext>,
}

/// What is done if nobody has opened the domain of a file, or somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcOpening {
    /// The domain has to be open already.
    Existing,
    /// The domain is opened, or made (`O_CREAT`).
    OpenOrCreate,
    /// The domain must not be open already (`O_CREAT | O_EXCL`).
    Create,
}

impl XrcDomain {
    /// Makes a domain of this process alone
    /// ([`ibv_open_xrcd(3)`](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html)).
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no extended connections.
    pub fn private(device: &Device) -> Result<Self, VerbsError> {
        Self::open(device, None, XrcOpening::OpenOrCreate)
    }

    /// Opens the domain of a file, which all processes share that have the file open on the same
    /// device. The file's contents do not matter.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no extended connections, and the device's refusal
    /// if `opening` does not fit.
    pub fn of_file(
        device: &Device,
        file: impl AsFd,
        opening: XrcOpening,
    ) -> Result<Self, VerbsError> {
        Self::open(device, Some(file.as_fd()), opening)
    }

    fn open(
        device: &Device,
        file: Option<BorrowedFd<'_>>,
        opening: XrcOpening,
    ) -> Result<Self, VerbsError> {
        let context = Arc::clone(device.context());
        let flags = match opening {
            XrcOpening::Existing => 0,
            XrcOpening::OpenOrCreate => libc::O_CREAT,
            XrcOpening::Create => libc::O_CREAT | libc::O_EXCL,
        };
        let file = file.map(|file| file.as_raw_fd());
        let provider = context.provider();
        // SAFETY: the context is open; the file is open during the call.
        let opened = unsafe { provider.open_xrc_domain(context.opened.handle, file, flags) };
        let handle = opened.map_err(|errno| lacks(&context, "ibv_open_xrcd", errno))?;
        Ok(Self {
            inner: Arc::new(OpenXrcDomain { handle, context }),
        })
    }
}

impl OpenXrcDomain {
    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }
}

impl Drop for OpenXrcDomain {
    fn drop(&mut self) {
        // SAFETY: all objects of the domain that this process has made held an `Arc` of it.
        unsafe { self.context.destroy(self.handle) };
    }
}

/// A shared receive queue that senders name by number.
#[derive(Debug)]
pub struct XrcReceiveQueue {
    pub(crate) queue: ReceiveQueue,
    number: u32,
}

impl XrcReceiveQueue {
    /// Makes a queue whose receives complete into `completions`
    /// ([`ibv_create_srq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html)). Its
    /// memory is registered with `domain`.
    ///
    /// # Errors
    /// [`VerbsError::OtherDevice`] if the domains and the queue are not of one open device. Otherwise
    /// the refusal of the device.
    pub fn new(
        domain: &ProtectionDomain,
        xrc: &XrcDomain,
        completions: &CompletionQueue,
        requests: u32,
        entries: u32,
    ) -> Result<Self, VerbsError> {
        let (xrc, completions) = (Arc::clone(&xrc.inner), Arc::clone(&completions.inner));
        let ours = &domain.inner.context;
        ours.check_same("XRC domain", xrc.context())?;
        ours.check_same("completion queue of receives", &completions.context)?;
        let made_with = (xrc.handle, completions.handle);
        let made_with = Some((made_with, Box::new((xrc, completions)) as _));
        let (queue, number) = ReceiveQueue::make(domain, requests, entries, made_with)?;
        Ok(Self { queue, number })
    }

    /// Returns the number by which senders name the queue
    /// ([`ibv_get_srq_num(3)`](https://man7.org/linux/man-pages/man3/ibv_get_srq_num.3.html)).
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns how many receives it holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Returns the number of receives that are posted and not retired.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.queue.outstanding()
    }

    /// Notes that this many receives have completed.
    ///
    /// # Panics
    /// If fewer receives were outstanding.
    pub fn retire(&mut self, receives: u32) {
        self.queue.retire(receives);
    }

    /// Begins a batch of receives.
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn batch<'memory>(&mut self) -> ReceiveBatch<'_, 'memory> {
        self.queue.batch()
    }
}

/// The receiving end of an extended connection, or one of several handles of it.
#[derive(Debug)]
pub struct XrcReceiveQueuePair {
    pub(crate) state: PairLifecycle,
    pub(crate) domain: Arc<OpenXrcDomain>,
}

impl XrcReceiveQueuePair {
    /// Makes a receiving end
    /// ([`ibv_create_qp_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html),
    /// `IBV_QPT_XRC_RECV`) and brings it to INIT. `access` are the rights of the peer to memory that it
    /// has keys to.
    ///
    /// # Errors
    /// The refusal of the device.
    pub fn new(xrc: &XrcDomain, port: u8, access: RegionAccess) -> Result<Self, VerbsError> {
        let domain = Arc::clone(&xrc.inner);
        let context = domain.context();
        let provider = context.provider();
        // SAFETY: context and domain are open.
        let made = unsafe { provider.create_xrc_receiver(context.opened.handle, domain.handle) };
        let (handle, number) = made.map_err(|errno| lacks(context, "ibv_create_qp_ex", errno))?;
        let state = PairLifecycle::new(handle, number, QueuePairKind::XrcReceive);
        let mut pair = Self { state, domain };
        let attributes = QueuePairAttributes {
            port,
            access_flags: access.bits(),
            ..QueuePairAttributes::to(QueuePairState::Init)
        };
        pair.state.modify(pair.domain.context(), &attributes)?;
        Ok(pair)
    }

    /// Takes another handle of a receiving end that some process of the domain has made, which exists
    /// until its last handle is dropped
    /// ([`ibv_open_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_open_qp.3.html)).
    ///
    /// # Errors
    /// The refusal of the device: no such end in the domain.
    pub fn open(xrc: &XrcDomain, number: u32) -> Result<Self, VerbsError> {
        let domain = Arc::clone(&xrc.inner);
        let context = domain.context();
        let provider = context.provider();
        // SAFETY: context and domain are open.
        let opened =
            unsafe { provider.open_xrc_receiver(context.opened.handle, domain.handle, number) };
        let handle = opened.map_err(|errno| lacks(context, "ibv_open_qp", errno))?;
        let state = PairLifecycle::new(handle, number, QueuePairKind::XrcReceive);
        let mut pair = Self { state, domain };
        pair.state.now = pair.query()?.attributes.state;
        Ok(pair)
    }

    /// Returns the queue pair's number, 24 bits, by which the sender, other processes and completions
    /// name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.state.number
    }

    /// Returns the state that the queue pair was last brought to by this handle, or that it had when
    /// the handle was taken.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        self.state.now
    }

    /// Returns the facts that the sender has to know.
    #[must_use]
    pub fn endpoint(&self, first: FirstSequence, local: &LocalPort) -> RemoteEndpoint {
        RemoteEndpoint::of(self.number(), first, local)
    }

    /// Connects the queue pair with a sending end: INIT → RTR → RTS. Returns the path MTU. Of the
    /// settings, those of the sender's retries have no effect.
    ///
    /// # Errors
    /// The errors of [`QueuePair::connect`](crate::QueuePair::connect).
    pub fn connect(
        &mut self,
        first: FirstSequence,
        local: LocalPort,
        remote: RemoteEndpoint,
        settings: ConnectionSettings,
    ) -> Result<Mtu, VerbsError> {
        let context = self.domain.context();
        let reads = settings.read_limits(&context.attributes);
        let settings = (settings, reads);
        self.state.connect(context, settings, first, local, remote)
    }

    /// Asks the device for what it knows of the queue pair
    /// ([`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)).
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    pub fn query(&self) -> Result<QueriedPair, VerbsError> {
        self.state.query(self.domain.context())
    }
}

impl Drop for XrcReceiveQueuePair {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and nothing is made from it.
        unsafe { self.domain.context.destroy(self.state.handle) };
    }
}

/// The sending end of an extended connection.
pub type XrcSendQueuePair = QueuePair<XrcSend>;

impl QueuePairBuilder {
    /// Makes the sending end of an extended connection and brings it to INIT.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no extended connections, otherwise the errors of
    /// [`build`](Self::build).
    pub fn build_xrc_send(
        self,
        port: u8,
        settings: ConnectionSettings,
    ) -> Result<XrcSendQueuePair, VerbsError> {
        let context = Arc::clone(&self.domain.context);
        let made = self.build_kind(QueuePairKind::XrcSend, port, 0, settings);
        made.map_err(|error| match error {
            VerbsError::Call { call, source, .. } => lacks(&context, call, source),
            other => other,
        })
    }
}

/// Requests of an extended connection that are about to be posted, with one call. Dropped, it posts
/// nothing.
pub type XrcBatch<'pair, 'memory> = SendBatch<'pair, 'memory, XrcSend>;

impl<'memory> XrcBatch<'_, 'memory> {
    /// Adds a send or a write for the [`XrcReceiveQueue`] of that number. A number that is not one of
    /// the receiving end's domain breaks the connection.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was.
    pub fn push(
        &mut self,
        request: &SendRequest<'_, 'memory>,
        receive_queue: u32,
    ) -> Result<(), PushError> {
        self.add(request)?;
        self.name(receive_queue);
        Ok(())
    }

    /// Adds a read. It takes no receive, but names a queue nevertheless, by which the receiving end
    /// finds the protection domain.
    ///
    /// # Errors
    /// The errors of [`SendBatch::push_read`](crate::SendBatch::push_read).
    pub fn push_read(
        &mut self,
        request: &ReadRequest<'_, 'memory>,
        receive_queue: u32,
    ) -> Result<(), PushError> {
        self.add_read(request)?;
        self.name(receive_queue);
        Ok(())
    }

    fn name(&mut self, receive_queue: u32) {
        let last = self.pair.table.last_mut();
        last.expect("a request was just pushed").xrc[0] = receive_queue;
    }
}

fn lacks(context: &DeviceContext, call: &'static str, errno: Errno) -> VerbsError {
    let instead = "connect a reliable queue pair with each process";
    context.lacks(call, errno, "extended reliable connections (XRC)", instead)
}
