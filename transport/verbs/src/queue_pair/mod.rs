//! A queue pair: one end of a reliable connection, or of another [`kind`]: an unreliable
//! connection (`unreliable`), datagrams (`datagram`) or an extended connection (`xrc`).
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

/// Declares the methods of a builder that each set a field.
macro_rules! setters {
    ($($(#[$doc:meta])* pub fn $name:ident($value:ident: $type:ty): $($field:ident).+ = $new:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $value: $type) -> Self {
            self.$($field).+ = $new;
            self
        }
    )*};
}

#[cfg(feature = "all")]
pub(crate) mod address;
#[cfg(feature = "all")]
pub(crate) mod atomic;
pub(crate) mod builder;
pub(crate) mod connection;
#[cfg(feature = "all")]
pub(crate) mod datagram;
#[cfg(feature = "all")]
pub(crate) mod datagram_buffer;
mod endpoint;
pub mod kind;
pub mod memory_window;
pub(crate) mod read;
pub(crate) mod receive_queue;
pub(crate) mod request_table;
pub(crate) mod send_batch;
pub(crate) mod state;
pub(crate) mod teardown;
#[cfg(feature = "all")]
pub(crate) mod unreliable;
mod window;
pub(crate) mod work_request;
#[cfg(feature = "all")]
pub(crate) mod xrc;

use std::marker::PhantomData;
use std::sync::Arc;

pub use builder::QueuePairBuilder;
pub use send_batch::SendBatch;

use connection::ConnectionSettings;
#[cfg(feature = "all")]
use datagram::Datagrams;
use ibex_base::fork;
use kind::Reliable;
use read::ReadLimits;
use receive_queue::{PostError, ReceiveQueue, SharedReceiveQueueObject};
use request_table::RequestTable;
use state::PairLifecycle;
use work_request::{PushError, ReceiveRequest, SendRequest};

use crate::provider::{PairHandle, PostSend, QueuePairSizes};
use crate::{
    FirstSequence, LocalPort, Operation, QueriedPair, QueuePairKind, QueuePairState,
    RemoteEndpoint, VerbsError, WorkId, abi::SendWr,
    abi::queue_pair_attributes::QueuePairAttributes, completion::queue::CompletionQueueObject,
    memory::protection_domain::Domain,
};

/// The two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Receive,
}

/// A queue pair of one kind; by default an end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair<K = Reliable> {
    pub(crate) any: AnyPair,
    kind: PhantomData<K>,
}

/// A queue pair of any kind.
#[derive(Debug)]
pub(crate) struct AnyPair {
    pub(crate) inner: Arc<QueuePairObject>,
    state: PairLifecycle,
    sizes: QueuePairSizes,
    settings: ConnectionSettings,
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
    #[cfg(feature = "all")]
    datagrams: Option<Box<Datagrams>>,
}

/// The object itself, which an own receive queue keeps alive too.
#[derive(Debug)]
pub(crate) struct QueuePairObject {
    pub(crate) handle: PairHandle,
    _shared: Option<Arc<SharedReceiveQueueObject>>,
    pub(crate) domain: Arc<Domain>,
    // Completion queues.
    send_completions: Arc<CompletionQueueObject>,
    receive_completions: Arc<CompletionQueueObject>,
}

impl<K> QueuePair<K> {
    /// Returns the queue pair's number, 24 bits, by which completions and events name it.
    #[inline]
    #[must_use]
    pub fn number(&self) -> u32 {
        self.any.state.number
    }

    /// Returns the state that the queue pair was last brought to. An error moves the queue pair to
    /// ERR without notice; only a failed completion shows that.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        self.any.state.now
    }

    /// Returns the number of bytes of an inline send, as the device gave them.
    #[inline]
    #[must_use]
    pub fn max_inline_bytes(&self) -> u32 {
        self.any.sizes.inline_bytes
    }

    /// Returns the number of pieces of one send, as the device gave them.
    #[inline]
    #[must_use]
    pub fn max_send_entries(&self) -> u32 {
        self.any.sizes.send_entries
    }

    /// Returns the number of pieces of one receive; 0 with a shared receive queue.
    #[must_use]
    pub fn max_receive_entries(&self) -> u32 {
        self.any.sizes.receive_entries
    }

    /// Returns the facts that the peer has to know.
    #[must_use]
    pub fn endpoint(&self, first: FirstSequence, local: &LocalPort) -> RemoteEndpoint {
        RemoteEndpoint::of(self.number(), first, local)
    }

    /// Queries the queue pair
    /// ([`ibv_query_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)). Takes a
    /// system call. Its state is the device's: unlike [`state`](Self::state) it also is ERR after an
    /// error.
    ///
    /// # Errors
    /// [`VerbsError`] if the device is gone.
    pub fn query(&self) -> Result<QueriedPair, VerbsError> {
        self.any.state.query(&self.any.inner.domain.context)
    }

    /// Moves the queue pair to ERR: everything outstanding is flushed, and nothing goes out any
    /// more.
    ///
    /// # Errors
    /// [`StateChangeError`](crate::StateChangeError) if the device refuses, which a device that is gone does.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        self.any.fail()
    }

    /// Returns the number of sends that may still be posted.
    #[inline]
    #[must_use]
    pub fn send_room(&self) -> u32 {
        self.any.send_room()
    }

    /// Returns the number of sends that are posted and not retired.
    #[inline]
    #[must_use]
    pub fn outstanding_sends(&self) -> u32 {
        self.any.outstanding
    }
}

impl QueuePair {
    /// Returns how many reads and atomics this end does and serves at a time, to be sent to the peer
    /// if either end uses them.
    #[must_use]
    pub fn read_limits(&self) -> ReadLimits {
        self.any.reads
    }

    /// Takes over what the peer has sent of its [`read_limits`](Self::read_limits), before
    /// [`connect`](Self::connect). Without it, this end takes the peer's for its own.
    pub fn set_peer_read_limits(&mut self, peer: ReadLimits) {
        self.any.reads = self.any.reads.with_peer(peer);
    }
}

impl AnyPair {
    fn modify(&mut self, attributes: &QueuePairAttributes) -> Result<(), VerbsError> {
        self.state.modify(&self.inner.domain.context, attributes)
    }

    fn fail(&mut self) -> Result<(), VerbsError> {
        self.modify(&QueuePairAttributes::to(QueuePairState::Error))
    }

    /// Returns whether it takes receives at all, of its own queue or of a shared one.
    fn receives(&self) -> bool {
        self.state.kind != QueuePairKind::XrcSend
    }

    #[inline]
    fn send_room(&self) -> u32 {
        self.capacity - self.outstanding
    }

    #[inline]
    fn retire_sends(&mut self, sends: u32) {
        self.outstanding = self
            .outstanding
            .checked_sub(sends)
            .expect("no more sends complete than were posted");
    }

    /// Returns the table, if the queue has room for another request.
    #[inline(always)]
    fn table_with_room(&mut self) -> Result<&mut RequestTable<SendWr>, PushError> {
        let capacity = self.capacity;
        match self.send_room() > self.table.len() as u32 {
            true => Ok(&mut self.table),
            false => Err(PushError::QueueFull { capacity }),
        }
    }

    /// Posts the requests of the table, which count as outstanding from then on.
    #[inline]
    fn post_batch(&mut self) -> Result<u32, PostError> {
        let outcome = self.post_table();
        self.outstanding += match &outcome {
            Ok(posted) => *posted,
            Err(error) => error.accepted,
        };
        outcome
    }

    /// Posts the last requests of all, into the places kept for them: with the queue pair
    /// in ERR they are flushed after everything before them. Returns whether there is one of the
    /// send queue: a datagram needs an address, and where none was ever sent, nothing is to drain.
    fn post_drain(&mut self, generation: u32) -> Result<bool, PostError> {
        let id = self.drain_id(Queue::Receive, generation);
        if let Some(receives) = &mut self.receives {
            receives.post_beyond_capacity(&ReceiveRequest::new(id, &[]))?;
        }
        let id = self.drain_id(Queue::Send, generation);
        self.table.clear();
        self.table
            .push_send(&SendRequest::send(id, &[]).signaled(), 0)
            .expect("an empty request fits into an empty table");
        #[cfg(feature = "all")]
        if let Some(datagrams) = &self.datagrams {
            let Some(address) = &datagrams.last else {
                return Ok(false);
            };
            let last = self.table.last_mut().expect("it was just pushed");
            last.set_datagram(address.handle.as_ptr(), self.state.number, 0);
        }
        self.post_table().map(|_| true)
    }

    /// Returns the identity of the last request of one of its queues. A number has 24 bits, so
    /// there is one to spare for the queue.
    fn drain_id(&self, queue: Queue, generation: u32) -> WorkId {
        let queue = match queue {
            Queue::Send => 0,
            Queue::Receive => 1 << 31,
        };
        WorkId::new(Operation::Drain, self.state.number | queue, generation)
    }

    #[inline(always)]
    fn post_table(&mut self) -> Result<u32, PostError> {
        let pair = self.inner.handle.as_ptr();
        // SAFETY: the queue pair is alive while `inner` is; what is not inline is registered.
        unsafe { self.table.post(self.post, pair, || "ibv_post_send") }
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
        let destroy = || unsafe { context.destroy(self.handle) };
        let (sends, receives) = (&self.send_completions, &self.receive_completions);
        sends.while_undrained(|| match Arc::ptr_eq(sends, receives) {
            true => destroy(),
            false => receives.while_undrained(destroy),
        });
    }
}
