//! A queue pair of an unreliable connection (UC): sends and writes that nobody acknowledges.
//!
//! The ends are connected like those of a reliable connection, without time-outs and retries
//! ([`QueuePairKind::Unreliable`](crate::QueuePairKind) has the attributes). A message that is lost on
//! the way, or finds no receive at the peer, is lost for good, and the sender's completion says only
//! that it has gone out. A send that fails at this end brings the queue pair to SQE, where it still
//! receives, and from which it [recovers](UnreliableQueuePair::recover_sends). There are no reads, no atomics, no invalidation and no fence.

use super::kind::Unreliable;
use crate::{
    ConnectionSettings, PushError, QueuePair, QueuePairBuilder, QueuePairKind, SendBatch,
    SendRequest, VerbsError,
};

/// An end of an unreliable connection
/// ([`ibv_create_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html), `IBV_QPT_UC`).
pub type UnreliableQueuePair = QueuePair<Unreliable>;

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
        self.build_kind(QueuePairKind::Unreliable, port, 0, settings)
    }
}

/// Sends and writes of an unreliable connection that are about to be posted, with one call. Dropped,
/// it posts nothing.
pub type UnreliableBatch<'pair, 'memory> = SendBatch<'pair, 'memory, Unreliable>;

impl<'memory> UnreliableBatch<'_, 'memory> {
    /// Adds a send or a write.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was. [`PushError::OtherKind`] if the request invalidates a
    /// key or has a fence.
    pub fn push(&mut self, request: &SendRequest<'_, 'memory>) -> Result<(), PushError> {
        request.check_kind(QueuePairKind::Unreliable)?;
        self.add(request)
    }
}
