//! The queues of an RDMA port that an engine polls.

use ibex_verbs::{AsyncEvents, CompletionWait, PostError, ReceiveQueue, WorkId};

use super::arrival_buffers::{ArrivalBuffers, ArrivedBuffer};

/// The queues of an RDMA port.
#[derive(Debug)]
pub(crate) struct PortQueues {
    /// The completion queue of all queue pairs of the RDMA port.
    pub(crate) wait: CompletionWait,
    /// The receive queue of all queue pairs of the RDMA port; `None` if each has its own.
    pub(crate) shared: Option<SharedReceives>,
    /// The device's asynchronous events; `None` if an earlier opener of the device reads them.
    pub(crate) events: Option<AsyncEvents>,
}

/// A shared receive queue and its buffers.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) queue: ReceiveQueue,
    pub(crate) buffers: ArrivalBuffers,
    /// The device reports when fewer receives than this are posted; 0 if it cannot.
    limit: u32,
    /// The device was asked for that report and has not sent it yet.
    is_armed: bool,
}

impl SharedReceives {
    /// Combines a queue and its buffers. The caller posts `posted` of the buffers with
    /// [`refill`](Self::refill).
    pub(crate) fn new(queue: ReceiveQueue, buffers: ArrivalBuffers, posted: u32) -> Self {
        Self {
            queue,
            buffers,
            limit: posted / LIMIT_PART,
            is_armed: false,
        }
    }

    /// Takes back the buffer of a receive that has completed; `None` if this queue has no such
    /// receive.
    #[inline(always)]
    pub(crate) fn complete(&mut self, id: WorkId) -> Option<ArrivedBuffer> {
        let buffer = match self.buffers.complete(id) {
            Some(buffer) => buffer,
            None => self.buffers.complete_late(id)?,
        };
        self.queue.retire(1);
        Some(buffer)
    }

    /// Posts the missing receives, and asks the device to report when few are left.
    pub(crate) fn refill(&mut self) -> Result<(), PostError> {
        self.buffers.refill(&mut self.queue)?;
        // If the device were asked earlier, it would report with each message.
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
            // This is no error, because the posted receives are counted here as well.
            Err(error) => {
                tracing::debug!(%error, "receives are counted without the device");
                self.limit = 0;
            }
        }
    }

    /// Posts the missing receives after the device has reported that few are left. The caller has
    /// taken all completions before.
    pub(crate) fn run_low(&mut self) -> Result<(), PostError> {
        self.is_armed = false;
        self.buffers.has_only(self.limit);
        self.refill()
    }

    /// Notes that a queue pair was destroyed before it was drained.
    pub(crate) fn may_miss_some(&mut self) {
        self.buffers.may_miss_some(&self.queue);
    }
}

/// The device reports when fewer receives are left than those posted divided by this number.
const LIMIT_PART: u32 = 8;
