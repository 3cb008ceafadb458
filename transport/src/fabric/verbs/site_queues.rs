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
    /// The device tells when fewer than this many are posted; 0 if it cannot.
    limit: u32,
    /// It will tell.
    is_armed: bool,
}

impl SharedReceives {
    /// Of `posted` buffers that are to be posted.
    pub(crate) fn new(queue: ReceiveQueue, buffers: ArrivalBuffers, posted: u32) -> Self {
        Self {
            queue,
            buffers,
            limit: posted / LIMIT_PART,
            is_armed: false,
        }
    }

    /// Takes notice that a receive has completed; `None` if it is none of this queue.
    #[inline(always)]
    pub(crate) fn complete(&mut self, id: WorkId) -> Option<ArrivedBuffer> {
        let buffer = match self.buffers.complete(id) {
            Some(buffer) => buffer,
            None => self.buffers.complete_late(id)?,
        };
        self.queue.retire(1);
        Some(buffer)
    }

    /// Posts what is missing, and asks to be told when little is left.
    pub(crate) fn refill(&mut self) -> Result<(), PostError> {
        self.buffers.refill(&mut self.queue)?;
        // Asked earlier it would tell with each message.
        let outstanding = self.buffers.outstanding(&self.queue);
        if !self.is_armed && self.limit > 0 && outstanding >= 2 * self.limit {
            self.arm();
        }
        Ok(())
    }

    #[inline(never)]
    fn arm(&mut self) {
        match self.queue.arm_limit(self.limit) {
            Ok(()) => self.is_armed = true,
            // What is posted is counted here as well.
            Err(error) => {
                tracing::debug!(%error, "receives are counted without the device");
                self.limit = 0;
            }
        }
    }

    /// The device has told that little is left, and what had completed was taken: posts what is
    /// missing.
    pub(crate) fn run_low(&mut self) -> Result<(), PostError> {
        self.is_armed = false;
        self.buffers.has_only(self.limit);
        self.refill()
    }

    /// A queue pair was destroyed before it was drained.
    pub(crate) fn may_miss_some(&mut self) {
        self.buffers.may_miss_some(&self.queue);
    }
}

/// Of so many parts that are posted the last is little.
const LIMIT_PART: u32 = 8;
