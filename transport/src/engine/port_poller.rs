//! The poller of one RDMA port: its completion queue, and the completions that a poll has found.
//! What the device says otherwise is in `port_events.rs`.

use std::{
    io, mem,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use ibex_protocol::{credit::reserved_buffer::reserved_buffers, id_map::IdMap};
use ibex_verbs::{PostError, VerbsError, WorkCompletion};
use rustix::event::epoll;

use super::connections::{Connections, mark_active};
use crate::{
    connection::Context,
    rdma::{PortQueues, RdmaPort, SharedReceives},
    session::EndCause,
    wire::{RailEvent, Stray, WireEvent},
};

/// An RDMA port and the sessions that use it.
pub(super) struct PortPoller {
    pub(super) rdma_port: Arc<RdmaPort>,
    pub(super) queues: PortQueues,
    /// Sessions by the numbers of their queue pairs.
    pub(super) sessions: IdMap<u64>,
    /// Sessions by the numbers of their rails' queue pairs.
    pub(super) rails: IdMap<u64>,
    /// Completions for queue pairs that have no session yet, by their tickets. Each ticket has no
    /// more than [may wait](Self::may_wait).
    early: Vec<(u64, WorkCompletion)>,
    /// The findings of the poll before sleeping.
    found: [WorkCompletion; COMPLETIONS_PER_POLL],
    pub(super) count: usize,
    /// True if the leaving queue pairs were notified that the queue is empty, and the device has
    /// reported no event since. An empty queue means something to them only after their last event.
    pub(super) is_notified_empty: bool,
    /// True if the next completion makes the channel readable.
    pub(super) is_armed: bool,
    /// The reason for which the next turn must give the RDMA port up.
    pub(super) failed: Option<EndCause>,
    /// True if the device or one of its queues is gone, and all sessions were notified.
    pub(super) is_lost: bool,
}

/// Most completions that one turn takes from an RDMA port, so that sending gets its turn too.
const COMPLETIONS_PER_POLL: usize = 32;

impl PortPoller {
    /// Makes the poller of a port whose queues are in the epoll set.
    pub(super) fn new(rdma_port: Arc<RdmaPort>, queues: PortQueues) -> Self {
        Self {
            rdma_port,
            queues,
            sessions: IdMap::new(),
            rails: IdMap::new(),
            early: Vec::new(),
            found: [WorkCompletion::EMPTY; COMPLETIONS_PER_POLL],
            count: 0,
            is_notified_empty: false,
            is_armed: false,
            failed: None,
            is_lost: false,
        }
    }

    /// Polls the queue into `found`, unless completions are there already. Returns their number. A
    /// queue that cannot be polled has failed.
    #[inline]
    pub(super) fn check(&mut self) -> usize {
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
    pub(super) fn poll_all(&mut self) {
        if !self.early.is_empty() {
            self.sort_early();
        }
        self.check();
    }

    /// Arms the queue and polls it once more. Returns whether the next turn has something to do. A
    /// leaving queue pair that had its last event waits for the event that the queue is empty.
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
        let is_awaited = !self.is_notified_empty && self.rdma_port.is_left();
        self.count > 0 || self.failed.is_some() || is_awaited
    }

    /// Takes a completion of a rail, or of a queue pair without a session. If the queue pair will have a session,
    /// the completion waits for it. If it had one, the buffer may be used again.
    #[inline(never)]
    fn take_sessionless(
        &mut self,
        completion: &WorkCompletion,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> bool {
        match self
            .rdma_port
            .pending_pairs()
            .ticket(completion.queue_pair())
        {
            Some(ticket) if self.may_wait(ticket, completion) => {
                self.early.push((ticket, *completion));
                false
            }
            Some(_) => {
                self.take_stray(completion);
                false
            }
            None => {
                let (number, event) = (completion.queue_pair(), RailEvent::Completed(completion));
                let notified = self.tell_rail(number, event, connections, context);
                if notified.is_none() {
                    self.take_stray(completion);
                }
                notified.unwrap_or(false)
            }
        }
    }

    /// Hands an event to the rail with queue pair `number`; `None` if that is no rail. Returns whether its
    /// session may have something to do because of them.
    pub(super) fn tell_rail(
        &mut self,
        number: u32,
        event: RailEvent<'_>,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> Option<bool> {
        let session = *self.rails.get(number)?;
        let Connections {
            all,
            tools,
            hot,
            watch,
            credit,
            ..
        } = connections;
        let connection = all.get_mut(session)?;
        let event = WireEvent::OfRail(&self.rdma_port, number, event);
        let heard = connection.hear(event, tools, context);
        if !connection.wire.has_rail(&self.rdma_port, number) {
            self.rails.remove(number);
        }
        let follows = heard.ok()?;
        mark_active(connection, hot);
        if follows {
            watch.take_in(connection);
            credit.take_report(connection);
        }
        Some(follows)
    }

    /// Takes a completion of a queue pair that is gone, so that its buffer may be used again.
    fn take_stray(&mut self, completion: &WorkCompletion) {
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

    /// Returns whether an early completion may wait for its session. It occupies a buffer that
    /// other sessions may need. Before its session begins, a peer has credit only for the reserved
    /// buffers, so no more arrivals than these may wait.
    fn may_wait(&self, ticket: u64, completion: &WorkCompletion) -> bool {
        if self.queues.shared.is_none() || completion.outcome().is_err() {
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

    /// Adds a session of this RDMA port, for the queue pair with this number and ticket. The session
    /// gets the completions that came before it.
    pub(super) fn join(
        &mut self,
        session: u64,
        (number, ticket): (u32, Option<u64>),
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        self.sessions.insert(number, session);
        if let Some(broker) = connections.credit.of_port(&self.rdma_port) {
            // The RDMA port has no more permits for sessions than its broker has places.
            broker.join(session).map_err(io::Error::other)?;
        }
        let (ours, others) = mem::take(&mut self.early)
            .into_iter()
            .partition(|(early, _)| Some(*early) == ticket);
        self.early = others;
        let Connections {
            all, credit, tools, ..
        } = connections;
        if let Some(connection) = all.get_mut(session) {
            for (_, completion) in ours {
                let shared = self.queues.shared.as_mut();
                let event = WireEvent::Completed(&completion, shared);
                if let Err(Stray) = connection.hear(event, tools, context) {
                    self.rdma_port.counters.strayed();
                }
            }
            credit.take_report(connection);
        }
        self.refill(connections, context);
        Ok(())
    }

    /// Hands on the completions that polls have found. Returns whether there were any, and whether
    /// sessions may have something to do because of them, which is rare.
    #[inline]
    pub(super) fn take_found(
        &mut self,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> (bool, bool) {
        if self.failed.is_some() {
            self.give_up(connections, context);
            return (true, false);
        }
        match self.count {
            0 => (self.is_empty(connections, context), false),
            _ => (true, self.hand_all_on(connections, context)),
        }
    }

    /// Hands on the completions that were found. Returns whether sessions may have something to do
    /// because of them.
    #[inline(never)]
    fn hand_all_on(&mut self, connections: &mut Connections, context: &mut Context<'_>) -> bool {
        let count = mem::take(&mut self.count);
        let (mut next, mut follows) = (0, false);
        while next < count {
            follows |= self.hand_on(&mut next, count, connections, context);
        }
        self.refill(connections, context);
        if follows {
            self.turn_sessions(count, connections, context);
        }
        follows
    }

    #[inline(never)]
    fn give_up(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        if let Some(cause) = self.failed.take() {
            self.lose(&cause, connections, context);
        }
    }

    /// Hands the `next` completion, and those behind it of the same queue pair, to their session.
    /// Returns whether the session may have something to do because of them.
    #[inline(always)]
    fn hand_on(
        &mut self,
        next: &mut usize,
        count: usize,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> bool {
        let number = self.found[*next].queue_pair();
        let session = self.sessions.get(number).copied();
        let connection = session.and_then(|session| connections.all.get_mut(session));
        let Some(connection) = connection else {
            let completion = self.found[*next];
            *next += 1;
            return self.take_sessionless(&completion, connections, context);
        };
        let mut follows = false;
        for completion in &self.found[*next..count] {
            if completion.queue_pair() != number {
                break;
            }
            *next += 1;
            let event = WireEvent::Completed(completion, self.queues.shared.as_mut());
            match connection.hear(event, &mut connections.tools, context) {
                Ok(one) => follows |= one,
                Err(Stray) => self.rdma_port.counters.strayed(),
            }
        }
        mark_active(connection, &mut connections.hot);
        if follows {
            // The completion may mean that a ring is not needed any more.
            connections.watch.take_in(connection);
            connections.credit.take_report(connection);
        }
        follows
    }

    /// Sends what the completions allow, after all of them were handled.
    #[inline(never)]
    fn turn_sessions(
        &mut self,
        count: usize,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        let is_of_one = |a: &WorkCompletion, b: &WorkCompletion| a.queue_pair() == b.queue_pair();
        for run in self.found[..count].chunk_by(is_of_one) {
            let number = run[0].queue_pair();
            let session = self.sessions.get(number).or_else(|| self.rails.get(number));
            if let Some(&session) = session
                && let Some(connection) = connections.all.get_mut(session)
                && connection.has_output()
            {
                connection.turn(&mut connections.tools, context);
                connections.deadlines.note(connection);
                connections.credit.take_report(connection);
            }
        }
    }

    /// Hands on everything that is in the completion queue.
    pub(super) fn take_all(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        for _ in 0..LAST_POLLS {
            self.poll_all();
            if self.is_lost || !self.take_found(connections, context).0 {
                break;
            }
        }
    }

    /// Tells queue pairs that wait for the last completion that the queue is empty, once. Returns
    /// whether that gave any session something to do.
    #[inline]
    fn is_empty(&mut self, connections: &mut Connections, context: &mut Context<'_>) -> bool {
        self.rdma_port.is_left()
            && !self.is_notified_empty
            && self.tell_draining_pairs(connections, context)
    }

    #[inline(never)]
    fn tell_draining_pairs(
        &mut self,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) -> bool {
        self.is_notified_empty = true;
        let mut any = false;
        for &session in self.sessions.values() {
            // A session that has moved to another RDMA port has its queue pair there.
            if let Some(connection) = connections.all.get_mut(session)
                && let Some((rdma_port, _)) = connection.wire.pair_at()
                && Arc::ptr_eq(rdma_port, &self.rdma_port)
                && let Ok(true) = connection.hear(WireEvent::Empty, &mut connections.tools, context)
            {
                mark_active(connection, &mut connections.hot);
                any = true;
            }
        }
        any
    }

    /// Forgets rails that are destroyed.
    pub(super) fn forget_gone_rails(&mut self, connections: &Connections) {
        let is_gone = |number: u32, session: u64| {
            let connection = connections.all.get(session);
            connection.is_none_or(|connection| !connection.wire.has_rail(&self.rdma_port, number))
        };
        let gone: Vec<u32> = self
            .rails
            .iter()
            .filter(|&(number, &session)| is_gone(number, session))
            .map(|(number, _)| number)
            .collect();
        for number in gone {
            self.rails.remove(number);
        }
    }

    // ---- Receive buffers -------------------------------------------------------------

    /// Posts receives again, in batches.
    #[inline]
    fn refill(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        if let Some(shared) = &self.queues.shared
            && shared.buffers.wants_refill()
        {
            self.refill_now(connections, context);
        }
    }

    #[inline(never)]
    fn refill_now(&mut self, connections: &mut Connections, context: &mut Context<'_>) {
        self.refill_with(SharedReceives::refill, connections, context);
    }

    pub(super) fn refill_with(
        &mut self,
        refill: impl FnOnce(&mut SharedReceives) -> Result<(), PostError>,
        connections: &mut Connections,
        context: &mut Context<'_>,
    ) {
        let Self {
            rdma_port, queues, ..
        } = self;
        let Some(shared) = &mut queues.shared else {
            return;
        };
        if rdma_port.takes_undrained() {
            shared.may_miss_some();
        }
        let why = match (refill(shared), shared.buffers.is_spent()) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(lost)) => format!(
                "{lost} receive buffers of RDMA device {} went with queue pairs that it never \
                 drained",
                rdma_port.device()
            ),
            (Ok(()), None) => return,
        };
        self.lose(&EndCause::DeviceLost { why }, connections, context);
    }

    // ---- The end ---------------------------------------------------------------------

    /// Closes the device behind the turn, even if handles of its sessions remain.
    pub(super) fn close(self, epoll: &OwnedFd, context: &mut Context<'_>) {
        let Self {
            rdma_port, queues, ..
        } = self;
        let _ = epoll::delete(epoll, queues.wait.fd());
        if let Some(events) = &queues.events {
            let _ = epoll::delete(epoll, events.as_fd());
        }
        context.leave(ClosingPort {
            rdma_port,
            queues: Some(queues),
        });
    }
}

/// An RDMA port whose device is closed when this is dropped.
struct ClosingPort {
    rdma_port: Arc<RdmaPort>,
    /// Taken by the drop alone.
    queues: Option<PortQueues>,
}

impl Drop for ClosingPort {
    fn drop(&mut self) {
        if let Some(queues) = self.queues.take() {
            self.rdma_port.close(queues);
        }
    }
}

pub(super) fn lost(error: &VerbsError) -> EndCause {
    EndCause::DeviceLost {
        why: error.to_string(),
    }
}

/// Polls before an RDMA port is given up: a whole completion queue's worth.
const LAST_POLLS: usize = 1024;
