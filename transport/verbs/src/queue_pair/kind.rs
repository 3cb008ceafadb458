//! Queue pairs of other kinds than RC, and what these kinds have in common.
//!
//! Each of them is a [`QueuePairOf`] its kind: [`UnreliableQueuePair`](crate::UnreliableQueuePair),
//! [`DatagramQueuePair`](crate::DatagramQueuePair) and
//! [`XrcSendQueuePair`](crate::XrcSendQueuePair). It has a [`QueuePair`] inside, so the calls of RC,
//! which carry the messages of channels, ask for no kind.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::{
    QueuePair, SendBatch,
    endpoint::{FirstSequence, LocalPort, RemoteEndpoint},
    receive_queue::PostError,
    teardown::Teardown,
};
use crate::{
    abi::{
        attribute_mask::AttributeMask, port::Mtu, queue_pair_attributes::QueuePairAttributes,
        queue_pair_state::QueuePairState,
    },
    error::VerbsError,
    provider::QueriedPair,
};

/// A queue pair of a kind other than RC.
#[derive(Debug)]
pub struct QueuePairOf<K> {
    pub(super) pair: QueuePair,
    pub(super) kind: K,
}

/// The kind of an unreliable connection (UC).
#[derive(Debug)]
pub struct Unreliable;

/// The kind of unreliable datagrams (UD).
#[derive(Debug)]
pub struct Datagram {
    /// The longest datagram, in bytes; 0 until the queue pair is started.
    pub(super) max_bytes: u32,
}

/// The kind of the sending end of an extended connection (XRC).
#[derive(Debug)]
pub struct XrcSend;

/// A kind whose queue pairs are connected with one peer.
pub trait Connected {}

impl Connected for Unreliable {}
impl Connected for XrcSend {}

/// A kind whose messages nobody acknowledges, so that its queue pairs go on after a failed send.
pub trait Unacknowledged {}

impl Unacknowledged for Unreliable {}
impl Unacknowledged for Datagram {}

impl<K> QueuePairOf<K> {
    /// Returns the queue pair's number, 24 bits, by which completions and events name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Returns the state that the queue pair was last brought to.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        self.pair.state()
    }

    /// Asks the device for what it knows of the queue pair
    /// ([`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)).
    ///
    /// # Errors
    /// [`VerbsError`](crate::VerbsError) if the device refuses.
    pub fn query(&self) -> Result<QueriedPair, VerbsError> {
        self.pair.query()
    }

    /// Returns the number of bytes of an inline send, as the device gave them.
    #[must_use]
    pub fn max_inline_bytes(&self) -> u32 {
        self.pair.max_inline_bytes()
    }

    /// Returns the number of pieces of one send, as the device gave them.
    #[must_use]
    pub fn max_send_entries(&self) -> u32 {
        self.pair.max_send_entries()
    }

    /// Returns the facts that the peer has to know.
    #[must_use]
    pub fn endpoint(&self, first: FirstSequence, local: &LocalPort) -> RemoteEndpoint {
        self.pair.endpoint(first, local)
    }

    /// Returns the number of sends that may still be posted.
    #[must_use]
    pub fn send_room(&self) -> u32 {
        self.pair.send_room()
    }

    /// Returns the number of sends that are posted and not retired.
    #[must_use]
    pub fn outstanding_sends(&self) -> u32 {
        self.pair.outstanding_sends()
    }

    /// Moves the queue pair to ERR: everything outstanding is flushed, and nothing goes out
    /// any more.
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) if the device refuses, which a device that is
    /// gone does.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        self.pair.fail()
    }

    /// Returns the library's queue pair.
    ///
    /// # Safety
    /// The rules of [`raw`](crate::raw).
    #[cfg(feature = "rdma-sys")]
    #[must_use]
    pub unsafe fn as_ptr(&self) -> Option<std::ptr::NonNull<rdma_sys::ibv_qp>> {
        // SAFETY: the caller's contract.
        unsafe { self.pair.as_ptr() }
    }

    /// Begins the end of the queue pair, as [`Teardown::begin`](crate::Teardown::begin)
    /// does.
    #[must_use]
    pub fn teardown(self, generation: u32, now: Instant, timeout: Duration) -> Teardown {
        Teardown::begin(self.pair, generation, now, timeout)
    }
}

impl<K: Unacknowledged> QueuePairOf<K> {
    /// Lets the send queue go on after a send has failed: SQE → RTS. What was posted behind that
    /// send is flushed, and receives have gone on meanwhile.
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) if the device refuses: no send has failed, or the
    /// queue pair is in ERR.
    pub fn recover_sends(&mut self) -> Result<(), VerbsError> {
        let pair = &mut self.pair;
        let before = pair.state;
        pair.state = QueuePairState::SendQueueError;
        let attributes = QueuePairAttributes::to(QueuePairState::ReadyToSend);
        let recovered = pair.modify(&attributes, AttributeMask::default());
        if recovered.is_err() {
            pair.state = before;
        }
        recovered
    }
}

impl<K: Connected> QueuePairOf<K> {
    /// Connects the queue pair: INIT → RTR → RTS. Returns the path MTU.
    ///
    /// # Errors
    /// The errors of [`QueuePair::connect`].
    pub fn connect(
        &mut self,
        first: FirstSequence,
        local: LocalPort,
        remote: RemoteEndpoint,
    ) -> Result<Mtu, VerbsError> {
        self.pair.connect(first, local, remote)
    }

    /// Takes notice that this many sends, the oldest ones, are done.
    ///
    /// # Panics
    /// If fewer sends were outstanding.
    pub fn retire_sends(&mut self, sends: u32) {
        self.pair.retire_sends(sends);
    }

    /// Begins a batch of requests.
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn send_batch<'memory>(&mut self) -> BatchOf<'_, 'memory, K> {
        BatchOf {
            batch: self.pair.send_batch(),
            kind: PhantomData,
        }
    }
}

/// Requests of a connection of a kind other than RC that are about to be posted, with one call.
/// Dropped, it posts nothing.
#[derive(Debug)]
pub struct BatchOf<'pair, 'memory, K> {
    pub(super) batch: SendBatch<'pair, 'memory>,
    kind: PhantomData<K>,
}

impl<K> BatchOf<'_, '_, K> {
    /// Posts the requests of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    pub fn post(self) -> Result<u32, PostError> {
        self.batch.post()
    }
}
