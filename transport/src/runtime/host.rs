//! Calls of handles on the engine of their session.

use std::{any::Any, os::fd::OwnedFd, sync::Arc, task::Waker, time::Instant};

use ibex_base::fork;
use ibex_protocol::{
    format::{
        control::{Ask, CloseReason, Role},
        record::Layout,
    },
    transfer::eager_write::LandingId,
};
use ibex_ring::{
    Released,
    memory::{LargeLease, RingLease},
    parking::{Condition, TimedOut},
};

use super::{Driver, EventLoop, Looks, Runtime};
use crate::{
    connection::{Connection, Context},
    endpoint::receive_end::ReceiveEnd,
    node::{Host, Mark, SessionShared, What},
    session::EngineId,
};

impl Runtime {
    /// Returns the engine of a session.
    fn loop_of(&self, session: u64) -> &Arc<EventLoop> {
        self.event_loop(EngineId::of_session(session))
    }
}

impl Host for Runtime {
    fn mark(&self, mark: Mark, quiet: bool) {
        let (Mark::Ready { session, .. } | Mark::Released { session, .. }) = mark;
        self.loop_of(session).mark_quietly(mark, quiet);
    }

    fn turn(&self, session: u64) {
        self.loop_of(session).poll_in_passing();
    }

    fn wait(
        &self,
        session: u64,
        deadline: Option<Instant>,
        looks: Looks,
        condition: &mut dyn Condition<Output = ()>,
    ) -> Result<(), TimedOut> {
        self.loop_of(session).wait(deadline, looks, condition)
    }

    fn attach_ring(
        &self,
        session: u64,
        end: u32,
        ring: Arc<RingLease>,
        layout: Layout,
        before: Released,
    ) {
        self.on_link(session, |link, _| {
            link.attach_ring(end, ring, layout, before);
        });
    }

    fn pass_ring(&self, session: u64, end: u32, capacity: usize, fd: OwnedFd) {
        self.on_link(session, |link, _| {
            let core = &mut link.core;
            if let Some(shared_memory) = &mut core.shared_memory {
                shared_memory.pass_ring(end, capacity as u64, fd, &mut core.ends.senders);
            }
        });
    }

    fn ask(&self, session: u64, end: u32, ask: Ask) {
        self.on_link(session, |link, _| {
            let core = &mut link.core;
            core.ends.senders.ask(end, ask, &mut core.common);
        });
    }

    fn ask_once(&self, session: u64, end: u32, sequence: u64) {
        self.on_link(session, |link, _| {
            let core = &mut link.core;
            core.ends.senders.ask_once(end, sequence, &mut core.common);
        });
    }

    fn close_sender(&self, session: u64, end: u32, last: u64, reason: CloseReason) {
        self.on_link(session, |link, _| {
            let core = &mut link.core;
            core.ends.senders.close(end, last, reason, &mut core.common);
        });
    }

    fn incoming(&self, session: u64) -> Vec<(String, Role)> {
        self.on_link(session, |link, _| link.core.common.incoming())
            .unwrap_or_default()
    }

    fn note_answers(&self, session: u64) {
        // The engine itself may ask, on behalf of a task.
        let engine = self.loop_of(session).engine.try_lock();
        if let Some(engine) = engine.filter(|_| !fork::is_child()) {
            engine.note_answers(session);
        }
    }

    fn watch_opening(&self, session: u64, due: Instant) {
        self.watch_link(session, |link| link.core.common.watch_opening(due));
    }

    fn tell(&self, session: u64, what: What) {
        self.on_link(session, |link, context| {
            link.core.common.tell(what, context);
        });
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Runtime {
    /// Sets a timer of a session. `set` returns whether the engine's next deadline changes.
    fn watch_link(&self, session: u64, set: impl FnOnce(&mut Connection) -> bool) {
        if self.on_link(session, |link, _| set(link)) == Some(true) {
            // The thread that sleeps in the epoll set must take up the new deadline.
            self.loop_of(session).bell().wake();
        }
    }
}

impl SessionShared {
    /// Returns the runtime of the session's node.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        let host = self.host.as_any().downcast_ref();
        host.expect("a session's host is the runtime of its node")
    }

    /// Returns the event loop of the session's engine.
    pub(crate) fn event_loop(&self) -> &Arc<EventLoop> {
        self.runtime().loop_of(self.id)
    }

    /// Calls `act` with the session's connection; `None` if the session does not exist any more.
    pub(crate) fn on_link<T>(
        &self,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        self.event_loop().on_link(self.id, act)
    }

    /// Waits until `condition` holds, for calls that wait for each message.
    pub fn wait_for<C: Condition>(
        &self,
        deadline: Option<Instant>,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        let looks = self.looks();
        self.event_loop().wait(deadline, looks, condition)
    }

    /// Transmits published messages, where callers turn the engine and a wire carries them.
    pub(crate) fn let_out(&self) {
        if self.node.driver() != Driver::Threads && self.looks() != Looks::Memory {
            self.event_loop().let_out(self.id);
        }
    }

    /// Transmits published messages before a wait is prepared, which may be for the answer to them.
    /// For messages over a device: sending takes no system call of this thread there.
    pub(crate) fn let_out_before_wait(&self) {
        if self.looks() == Looks::Queue {
            self.let_out();
        }
    }

    /// Has the thread that turns the engine at `at` call `waker`, unless the session ends before.
    pub fn wake_at(&self, at: Instant, waker: &Waker) {
        self.runtime().watch_link(self.id, |link| {
            let core = &mut link.core;
            core.alarms.wake_at(at, waker.clone(), &mut core.common)
        });
    }

    /// Has the engine check for tasks that wait for room for long.
    pub(crate) fn watch_stalls(&self) {
        let watch = |link: &mut Connection| link.core.common.watch_stalls();
        self.runtime().watch_link(self.id, watch);
    }

    /// Returns the tag of the end with this name and role, if this node has it.
    #[must_use]
    pub fn tag_of(&self, name: &str, role: Role) -> Option<u8> {
        self.on_link(|link, _| link.core.ends.tag_of(name, role))
            .flatten()
    }

    /// Returns whether the session has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.on_link(|link, _| link.core.common.is_over())
            .unwrap_or(true)
    }

    pub(crate) fn send_large(
        &self,
        end: u32,
        sequence: u64,
        length: usize,
        memory: LargeLease,
    ) -> Option<LandingId> {
        let landing = self.on_link(|link, _| link.send_large(end, sequence, length, memory));
        landing.flatten()
    }

    pub(crate) fn pass_large(
        &self,
        end: u32,
        sequence: u64,
        slot: u32,
        length: usize,
        capacity: usize,
        fd: Option<OwnedFd>,
    ) {
        let (length, capacity) = (length as u64, capacity as u64);
        self.on_link(|link, _| {
            if let Some(shared_memory) = &mut link.core.shared_memory {
                shared_memory.pass_large(end, sequence, slot, length, capacity, fd);
            }
        });
    }

    pub(crate) fn pass_forget(&self, end: u32, slots: u64) {
        self.on_link(|link, _| {
            if let Some(shared_memory) = &mut link.core.shared_memory {
                shared_memory.pass_forget(end, slots);
            }
        });
    }

    /// Allows another end with the name of `end` to be opened before `end` is dropped.
    pub fn free_name(&self, end: u32) {
        self.on_link(|link, _| link.core.common.free_name(end));
    }

    pub(crate) fn close_receiver(&self, end: &ReceiveEnd, reason: CloseReason) {
        let counters = end.counters();
        self.on_link(|link, _| {
            link.core.close_receiver(end.id, &counters, reason);
        });
    }

    /// Notes that a receiving end lacks memory for an arrival. The engine wakes the end's waiters
    /// at `retry_at`.
    #[cold]
    pub(crate) fn receiver_retries(&self, end: u32, retry_at: Instant) {
        self.on_link(|link, _| {
            let core = &mut link.core;
            core.ends.receivers.retries(end, retry_at, &mut core.common);
        });
    }

    /// Ends the session, because the peer's words or bytes break the protocol.
    #[cold]
    pub(crate) fn misbehaved(&self, what: &str) {
        let why = format!("it broke the protocol: {what}");
        self.on_link(|link, context| link.core.fail(&why, context));
    }
}
