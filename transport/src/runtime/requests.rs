//! Calls of handles on the engine of their session.

use std::{os::fd::OwnedFd, sync::Arc, task::Waker, time::Instant};

use ibex_base::fork;
use ibex_protocol::{
    format::{
        control::{Ask, CloseReason, Role},
        record::Layout,
    },
    transfer::eager_write::EagerBlockId,
};
use ibex_ring::{
    Released,
    memory::RingLease,
    parking::{Condition, TimedOut},
};

use super::{Driver, EventLoop, PollTarget, Runtime};
use crate::{
    connection::{Connection, Context},
    endpoint::receive_end::ReceiveEnd,
    node::{EngineRequests, Mark, SessionShared, What},
    session::{EndLabel, EngineId},
    shared_memory::{PassedSlice, RegionSlot},
    wire::MessageBytes,
};

impl SessionShared {
    /// Returns the runtime of the session's node.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        self.requests.runtime()
    }

    /// Waits until `condition` holds, for calls that wait for each message.
    pub fn wait_for<C: Condition>(
        &self,
        deadline: Option<Instant>,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        let poll_target = self.poll_target();
        self.requests
            .event_loop()
            .wait(deadline, poll_target, condition)
    }

    /// Transmits published messages, where callers turn the engine and a wire carries them.
    pub(crate) fn let_out(&self) {
        if self.node.driver() != Driver::Threads && self.poll_target() != PollTarget::Memory {
            self.requests.event_loop().let_out(self.id);
        }
    }

    /// Transmits published messages before a wait is prepared, which may be for the answer to them.
    /// For messages over a device: sending takes no system call of this thread there.
    pub(crate) fn let_out_before_wait(&self) {
        if self.poll_target() == PollTarget::Queue {
            self.let_out();
        }
    }

    /// Has the thread that turns the engine call `waker` at `at`, or when the session ends before.
    /// Returns false, and calls nothing, if the session is over.
    pub fn wake_at(&self, at: Instant, waker: &Waker) -> bool {
        let mut is_set = false;
        self.requests.watch_connection(|connection| {
            let core = &mut connection.core;
            is_set = !core.common.is_over();
            is_set && core.alarms.wake_at(at, waker.clone(), &mut core.common)
        });
        is_set
    }

    /// Allows another end with the name of `end` to be opened before `end` is dropped.
    pub fn free_name(&self, end: u32) {
        self.requests
            .on_connection(|connection, _| connection.core.common.free_name(end));
    }

    /// Returns whether the session has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.requests
            .on_connection(|connection, _| connection.core.common.is_over())
            .unwrap_or(true)
    }
}

impl EngineRequests {
    fn runtime(&self) -> &Runtime {
        let runtime = self.runtime.downcast_ref();
        runtime.expect("a session's runtime is that of its node")
    }

    /// Returns the event loop of the session's engine.
    pub(crate) fn event_loop(&self) -> &Arc<EventLoop> {
        let engine = EngineId::of_session(self.session);
        self.runtime().event_loop(engine)
    }

    /// Calls `act` with the session's connection; `None` if the session does not exist any more.
    pub(crate) fn on_connection<T>(
        &self,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        self.event_loop().on_connection(self.session, act)
    }

    // ---- Marks and turns -------------------------------------------------------------

    /// Leaves a mark that the prefix of a receiving end moved; `urgent` if the sender must learn of
    /// it now.
    pub(crate) fn mark_released(&self, end: u32, urgent: bool) {
        let session = self.session;
        let mark = Mark::Released { session, end };
        self.event_loop().mark_quietly(mark, !urgent);
    }

    /// Wakes the engine for records in a ring that is cold (not shm).
    pub(crate) fn mark_ready(&self, end: u32) {
        let session = self.session;
        let mark = Mark::Ready { session, end };
        self.event_loop().mark_quietly(mark, false);
    }

    /// Runs a turn where callers turn the engine, for a call that does not wait, or when enough
    /// bytes are queued.
    #[cold]
    pub(crate) fn poll(&self) {
        self.event_loop().poll_in_passing();
    }

    /// Updates the account of a peer whose host is silent, unless the engine is busy. The engine
    /// itself may ask, on behalf of a task.
    pub(crate) fn note_answers(&self) {
        let engine = self.event_loop().engine.try_lock();
        if let Some(engine) = engine.filter(|_| !fork::is_child()) {
            engine.connections.note_answers(self.session);
        }
    }

    // ---- Timers ----------------------------------------------------------------------

    /// Sets a timer of the session. `set` returns whether the engine's next deadline changes.
    fn watch_connection(&self, set: impl FnOnce(&mut Connection) -> bool) {
        if self.on_connection(|connection, _| set(connection)) == Some(true) {
            // The thread that sleeps in the epoll set must take up the new deadline.
            self.event_loop().bell.wake();
        }
    }

    /// Has the engine check at `due` whether an end that is waited for is open.
    pub(crate) fn watch_opening(&self, due: Instant) {
        self.watch_connection(|connection| connection.core.common.watch_opening(due));
    }

    /// Has the engine check for tasks that wait for room for long.
    pub(crate) fn watch_stalls(&self) {
        self.watch_connection(|connection| connection.core.common.watch_stalls());
    }

    // ---- Ends ------------------------------------------------------------------------

    /// Returns the names of channels that the peer opened and this node did not.
    #[must_use]
    pub fn incoming(&self) -> Vec<(String, Role)> {
        self.on_connection(|connection, _| connection.core.common.incoming())
            .unwrap_or_default()
    }

    /// Returns whether the peer has a receiving end of this name that has no counterpart here. It
    /// may be closed.
    #[must_use]
    pub fn is_awaited(&self, name: &str) -> bool {
        let awaited = self.on_connection(|connection, _| connection.core.common.is_awaited(name));
        awaited.unwrap_or_default()
    }

    /// Returns the label of the end with this name and role, if this node has it.
    #[must_use]
    pub fn label_of(&self, name: &str, role: Role) -> Option<Option<&'static EndLabel>> {
        self.on_connection(|connection, _| connection.core.ends.label_of(name, role))
            .flatten()
    }

    /// Hands the ring of a sending end over to the engine. Messages up to `before` were sent and
    /// released.
    pub(crate) fn attach_ring(
        &self,
        end: u32,
        ring: Arc<RingLease>,
        layout: Layout,
        before: Released,
    ) {
        self.on_connection(|connection, context| {
            connection.attach_ring(end, ring, layout, before, context);
        });
    }

    /// Passes the ring of a sending end to the peer (shm).
    pub(crate) fn pass_ring(&self, end: u32, capacity: usize, fd: OwnedFd) {
        self.on_connection(|connection, _| {
            let core = &mut connection.core;
            if let Some(shared_memory) = &mut core.shared_memory {
                shared_memory.pass_ring(end, capacity as u64, fd, &mut core.ends.senders);
            }
        });
    }

    /// Asks the peer for an end's counts.
    pub(crate) fn ask(&self, end: u32, ask: Ask) {
        self.on_connection(|connection, _| {
            let core = &mut connection.core;
            core.ends.senders.ask(end, ask, &mut core.common);
        });
    }

    /// Asks for an acknowledgement, which may have been asked for before.
    pub(crate) fn ask_once(&self, end: u32, sequence: u64) {
        self.on_connection(|connection, _| {
            let core = &mut connection.core;
            core.ends.senders.ask_once(end, sequence, &mut core.common);
        });
    }

    /// Closes a sending end after message `last`.
    pub(crate) fn close_sender(&self, end: u32, last: u64, reason: CloseReason) {
        self.on_connection(|connection, _| {
            let core = &mut connection.core;
            if let Some(shared_memory) = &mut core.shared_memory {
                // A receiver learns of an orderly end by the sender's words.
                shared_memory.tell_untold(end, Role::Sender);
            }
            core.ends.senders.close(end, last, reason, &mut core.common);
        });
    }

    /// Reports to the program something that a handle has noticed.
    pub(crate) fn tell(&self, what: What) {
        self.on_connection(|connection, context| connection.core.common.tell(what, context));
    }

    pub(crate) fn send_large(
        &self,
        end: u32,
        sequence: u64,
        length: usize,
        bytes: MessageBytes,
    ) -> Option<EagerBlockId> {
        // If the session is gone, the message is dropped here and not under the engine's lock: a
        // region tells who waits for it.
        let mut bytes = Some(bytes);
        self.on_connection(|connection, context| {
            connection.send_large(end, sequence, length, bytes.take()?, context)
        })
        .flatten()
    }

    pub(crate) fn pass_large(
        &self,
        end: u32,
        sequence: u64,
        slot: u32,
        length: usize,
        capacity: usize,
        fd: OwnedFd,
    ) {
        let (length, capacity) = (length as u64, capacity as u64);
        self.on_connection(|connection, _| {
            if let Some(shared_memory) = &mut connection.core.shared_memory {
                shared_memory.pass_large(end, sequence, slot, length, capacity, fd);
            }
        });
    }

    /// Hands a slice with message `sequence` to the engine, until the peer has released the message.
    pub(crate) fn pass_slice(
        &self,
        end: u32,
        sequence: u64,
        length: usize,
        slot: RegionSlot,
        slice: PassedSlice,
    ) {
        // As in `send_large`, the slice is not dropped under the engine's lock.
        let mut slice = Some(slice);
        self.on_connection(|connection, context| {
            let core = &mut connection.core;
            core.pass_slice(end, sequence, length as u64, slot, &mut slice, context);
        });
    }

    pub(crate) fn pass_forget(&self, end: u32, slots: u64) {
        self.on_connection(|connection, _| {
            if let Some(shared_memory) = &mut connection.core.shared_memory {
                shared_memory.pass_forget(end, slots);
            }
        });
    }

    pub(crate) fn close_receiver(&self, end: &ReceiveEnd, reason: CloseReason) {
        let counters = end.counters();
        self.on_connection(|connection, context| {
            let core = &mut connection.core;
            core.close_receiver(end.id, &counters, reason, context);
        });
    }

    /// Notes that a receiving end lacks memory for an arrival. The engine wakes the end's waiters
    /// at `retry_at`, if it has the end. Returns whether it has.
    #[cold]
    pub(crate) fn receiver_retries(&self, end: &ReceiveEnd, retry_at: Instant) -> bool {
        let has_end = self.on_connection(|connection, _| {
            let core = &mut connection.core;
            core.ends.receivers.retries(end, retry_at, &mut core.common)
        });
        has_end == Some(true)
    }

    /// Ends the session, because the peer's words or bytes break the protocol.
    #[cold]
    pub(crate) fn misbehaved(&self, what: &str) {
        let why = format!("it broke the protocol: {what}");
        self.on_connection(|connection, context| connection.core.fail(&why, context));
    }
}
