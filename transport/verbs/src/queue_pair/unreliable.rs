//! A queue pair of an unreliable connection (UC): sends and writes that nobody acknowledges.
//!
//! The ends are connected like those of a reliable connection, without time-outs and retries
//! ([`QueuePairKind::Unreliable`](crate::QueuePairKind) has the attributes). A message that is lost on
//! the way, or finds no receive at the peer, is lost for good, and the sender's completion says only
//! that it has gone out. A send that fails at this end brings the queue pair to SQE, where it still
//! receives, and from which it [recovers](UnreliableQueuePair::recover_sends). There are no reads, no atomics, no invalidation and no fence.

use super::{
    QueuePair, QueuePairBuilder, SendBatch,
    connection::ConnectionSettings,
    delegates::delegates,
    endpoint::{FirstSequence, LocalPort, RemoteEndpoint},
    receive_queue::{PostError, ReceiveQueue},
    work_request::{PushError, SendRequest},
};
use crate::{
    abi::{port::Mtu, queue_pair_kind::QueuePairKind},
    error::VerbsError,
};

/// An end of an unreliable connection
/// ([`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html), `IBV_QPT_UC`).
#[derive(Debug)]
pub struct UnreliableQueuePair {
    pair: QueuePair,
}

delegates!(unreliable UnreliableQueuePair);

impl QueuePairBuilder {
    /// Makes a queue pair for an unreliable connection and brings it to INIT, where it takes receives.
    /// Of the settings, MTU, service level and traffic class have an effect.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn build_unreliable(
        self,
        port: u8,
        settings: ConnectionSettings,
    ) -> Result<UnreliableQueuePair, VerbsError> {
        let pair = self.build_connected(QueuePairKind::Unreliable, port, settings)?;
        Ok(UnreliableQueuePair { pair })
    }
}

impl UnreliableQueuePair {
    /// Returns its own receive queue; `None` if it takes from a shared one.
    pub fn receive_queue(&mut self) -> Option<&mut ReceiveQueue> {
        self.pair.receive_queue()
    }

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

    /// Begins a batch of sends and writes.
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn send_batch<'memory>(&mut self) -> UnreliableBatch<'_, 'memory> {
        UnreliableBatch(self.pair.send_batch())
    }
}

/// Sends and writes of an unreliable connection that are about to be posted, with one call. Dropped,
/// it posts nothing.
#[derive(Debug)]
pub struct UnreliableBatch<'pair, 'memory>(SendBatch<'pair, 'memory>);

impl<'memory> UnreliableBatch<'_, 'memory> {
    /// Adds a send or a write.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was. [`PushError::OtherKind`] if the request invalidates a
    /// key or has a fence.
    pub fn push(&mut self, request: &SendRequest<'_, 'memory>) -> Result<(), PushError> {
        request.check_kind(QueuePairKind::Unreliable)?;
        self.0.push(request)
    }

    /// Posts the requests of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    pub fn post(self) -> Result<u32, PostError> {
        self.0.post()
    }
}
