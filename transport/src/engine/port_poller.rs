//! The poller of one RDMA port: its completion queue, and the completions that a look has found.

use std::{
    mem,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use ibex_protocol::{
    credit::{broker::CreditBroker, reserved_buffer::reserved_buffers},
    id_map::IdMap,
};
use ibex_verbs::{VerbsError, WorkCompletion};
use rustix::event::epoll;

use crate::{
    rdma::{PortQueues, RdmaPort},
    session::EndCause,
};

/// An RDMA port and the sessions that use it.
pub(super) struct PortPoller {
    pub(super) rdma_port: Arc<RdmaPort>,
    pub(super) queues: PortQueues,
    /// The broker that shares receive buffers among the RDMA port's sessions; `None` where each
    /// session has buffers of its own.
    pub(super) broker: Option<CreditBroker>,
    /// Sessions by the numbers of their queue pairs.
    pub(super) sessions: IdMap<u64>,
    /// Completions for queue pairs that have no session yet, by their tickets. Each ticket has no
    /// more than [may wait](Self::may_wait).
    pub(super) early: Vec<(u64, WorkCompletion)>,
    /// The findings of the look before sleeping.
    pub(super) found: [WorkCompletion; COMPLETIONS_PER_POLL],
    pub(super) count: usize,
    /// True if the leaving queue pairs were told that the queue is empty, and the device has
    /// reported no event since. An empty queue means something to them only after their last event.
    pub(super) is_told_empty: bool,
    /// True if the next completion makes the channel readable.
    pub(super) is_armed: bool,
    /// The reason for which the next turn must give the RDMA port up.
    pub(super) failed: Option<EndCause>,
    /// True if the device or one of its queues is gone, and all sessions were told.
    pub(super) is_lost: bool,
}

/// Most completions that one turn takes from an RDMA port, so that sending gets its turn too.
const COMPLETIONS_PER_POLL: usize = 32;

impl PortPoller {
    /// Makes the poller of a port whose queues are in the epoll set.
    pub(super) fn new(rdma_port: Arc<RdmaPort>, queues: PortQueues) -> Self {
        Self {
            broker: rdma_port.broker(),
            rdma_port,
            queues,
            sessions: IdMap::new(),
            early: Vec::new(),
            found: [WorkCompletion::EMPTY; COMPLETIONS_PER_POLL],
            count: 0,
            is_told_empty: false,
            is_armed: false,
            failed: None,
            is_lost: false,
        }
    }

    /// Polls the queue into `found`, unless completions are there already. Returns their number. A
    /// queue that cannot be polled has failed.
    #[inline]
    pub(super) fn look(&mut self) -> usize {
        if self.count == 0 && !self.is_lost && self.failed.is_none() {
            match self.queues.wait.poll(&mut self.found) {
                Ok(found) => self.count = found.len(),
                Err(error) => self.failed = Some(lost(&error)),
            }
            self.rdma_port.counters.polled(self.count);
        }
        self.count
    }

    /// Polls for a turn, which may come long after the last.
    pub(super) fn look_around(&mut self) {
        if !self.early.is_empty() {
            self.sort_early();
        }
        self.look();
    }

    /// Arms the queue and polls it once more. Returns whether the next turn has something to do. A
    /// leaving queue pair that had its last event waits for the news that the queue is empty.
    pub(super) fn arm(&mut self) -> bool {
        if self.is_lost {
            return false;
        }
        self.is_armed = true;
        if self.count == 0 && self.failed.is_none() {
            match self.queues.wait.prepare_sleep(&mut self.found) {
                Ok(found) => self.count = found.len(),
                Err(error) => self.failed = Some(lost(&error)),
            }
            self.rdma_port.counters.polled(self.count);
        }
        let is_awaited = !self.is_told_empty && self.rdma_port.is_left();
        self.count > 0 || self.failed.is_some() || is_awaited
    }

    /// Takes a completion of a queue pair without a session. If the queue pair will have a session,
    /// the completion waits for it. If it had one, the buffer may be used again.
    #[inline(never)]
    pub(super) fn take_sessionless(&mut self, completion: &WorkCompletion) {
        match self
            .rdma_port
            .pending_pairs()
            .ticket(completion.queue_pair())
        {
            Some(ticket) if self.may_wait(ticket, completion) => {
                self.early.push((ticket, *completion));
            }
            _ => self.take_stray(completion),
        }
    }

    /// Returns whether an early completion may wait for its session. It occupies a buffer that
    /// other sessions may need. Before its session begins, a peer has credit only for the reserved
    /// buffers, so no more arrivals than these may wait.
    fn may_wait(&self, ticket: u64, completion: &WorkCompletion) -> bool {
        if self.broker.is_none() || completion.outcome().is_err() {
            return true;
        }
        let waiting = self.early.iter().filter(|(early, _)| *early == ticket);
        (waiting.count() as u64) < reserved_buffers(true)
    }

    /// Takes early completions of queue pairs that were abandoned and will not get a session.
    #[inline(never)]
    fn sort_early(&mut self) {
        let pending_pairs = self.rdma_port.pending_pairs();
        let (waiting, strays) = mem::take(&mut self.early)
            .into_iter()
            .partition(|(ticket, early)| pending_pairs.ticket(early.queue_pair()) == Some(*ticket));
        self.early = waiting;
        for (_, stray) in strays {
            self.take_stray(&stray);
        }
    }

    /// Closes the device, even if handles of its sessions remain.
    pub(super) fn close(self, epoll: &OwnedFd) {
        let Self {
            rdma_port, queues, ..
        } = self;
        let _ = epoll::delete(epoll, queues.wait.fd());
        if let Some(events) = &queues.events {
            let _ = epoll::delete(epoll, events.as_fd());
        }
        rdma_port.close(queues);
    }

    /// Takes a completion of a queue pair that is gone, so that its buffer may be used again.
    pub(super) fn take_stray(&mut self, completion: &WorkCompletion) {
        self.rdma_port.counters.strayed();
        let shared = self.queues.shared.as_mut();
        if shared
            .and_then(|shared| shared.complete(completion.id()))
            .is_none()
        {
            tracing::debug!(
                id = %completion.id(),
                queue_pair = completion.queue_pair(),
                "a completion of a queue pair that is gone"
            );
        }
    }
}

pub(super) fn lost(error: &VerbsError) -> EndCause {
    EndCause::DeviceLost {
        why: error.to_string(),
    }
}
