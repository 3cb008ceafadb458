//! What an engine polls of a site that it has in its care.

use super::arrival_buffers::{ArrivalBuffers, ArrivedBuffer};
use super::async_event::AsyncEvents;
use super::completion_wait::CompletionWait;
use super::receive_queue::{PostError, ReceiveQueue};
use super::work_id::WorkId;

/// The queues of a site.
#[derive(Debug)]
pub(crate) struct SiteQueues {
    /// Of all its queue pairs.
    pub(crate) wait: CompletionWait,
    /// For all of them; `None` where each has its own.
    pub(crate) shared: Option<SharedReceives>,
    /// `None` if someone else reads them, who opened the device before.
    pub(crate) events: Option<AsyncEvents>,
}

/// A shared receive queue and its buffers.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) queue: ReceiveQueue,
    pub(crate) buffers: ArrivalBuffers,
}

impl SharedReceives {
    /// Takes notice that a receive has completed; `None` if it is none of this queue.
    #[inline(always)]
    pub(crate) fn complete(&mut self, id: WorkId) -> Option<ArrivedBuffer> {
        let buffer = self.buffers.complete(id)?;
        self.queue.retire(1);
        Some(buffer)
    }

    /// Posts what is missing.
    pub(crate) fn refill(&mut self) -> Result<(), PostError> {
        self.buffers.refill(&mut self.queue)
    }
}
