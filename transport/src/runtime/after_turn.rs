//! Work that a turn leaves for after the engine's lock: wakers, and actions that take long.

use std::{mem, sync::Arc};

use ibex_ring::memory::MemoryUse;

use super::{Driver, EventLoop};
use crate::{
    connection::{Context, MemoryPurpose, MemoryWanted},
    rdma::RdmaPort,
};

impl EventLoop {
    /// Calls a turn's wakers and does its deferred work, without the engine's lock. Wakers are the
    /// only foreign code that ibex's threads run (rule 4 of `event_loop`).
    #[inline]
    pub(crate) fn wake(&self, context: Context<'_>) {
        if context.is_untouched() {
            // An untouched context holds nothing that must be dropped.
            mem::forget(context);
        } else {
            self.wake_all(context);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_all(&self, mut context: Context<'_>) {
        context.wakers.wake();
        // Who wants memory may get what is freed here.
        context.leftovers.clear();
        for wanted in context.wanted.drain(..) {
            self.provide(wanted);
        }
        for rdma_port in context.unsure_ports.drain(..) {
            self.check_for_device(rdma_port);
        }
    }

    /// Gets memory for arriving data: on the caller's thread under [`Driver::Caller`], and
    /// otherwise on the control thread, so that turns go on.
    fn provide(&self, wanted: MemoryWanted) {
        match self.node.driver() {
            Driver::Caller => wanted.provide(),
            Driver::Threads | Driver::Tasks => {
                self.on_control_thread(move || wanted.provide());
            }
        }
    }

    /// Checks that an RDMA port's device still exists, on a thread that may block.
    pub(crate) fn check_for_device(&self, rdma_port: Arc<RdmaPort>) {
        let Some(event_loop) = self.me.upgrade() else {
            return;
        };
        let check = move || {
            if !rdma_port.is_listed() {
                event_loop.with_engine(|engine, context| {
                    let (ports, connections) = (&mut engine.ports, &mut engine.connections);
                    ports.device_was_removed(&rdma_port, connections, context);
                });
                // The leader turns the sessions, which end.
                event_loop.bell.wake();
            }
        };
        match self.node.driver() {
            Driver::Caller => check(),
            Driver::Threads | Driver::Tasks => self.on_control_thread(check),
        }
    }

    /// Runs work that takes too long for a turn, on the node's control thread. Mapping and
    /// populating the memory of a large message takes milliseconds, and no other session may wait
    /// for that. Once the node is closed, the work is dropped.
    fn on_control_thread(&self, work: impl FnOnce() + Send + 'static) {
        self.node.control_thread.give_or_do(
            work,
            "no control thread: a large message's memory is mapped where the engine runs, and \
             everything waits for it",
        );
    }
}

impl MemoryWanted {
    /// Gets the memory and gives it to the session, if the session still exists.
    pub(crate) fn provide(self) {
        let Self {
            session,
            end,
            purpose,
        } = self;
        if session.requests.on_connection(|_, _| ()).is_none() {
            return;
        }
        match purpose {
            MemoryPurpose::Large(wanted) => {
                let sequence = wanted.sequence;
                let memory = session.memory_for_arrival(wanted);
                session.requests.on_connection(|connection, context| {
                    let core = &mut connection.core;
                    let (receivers, common) = (&mut core.ends.receivers, &mut core.common);
                    receivers.large_memory(end, sequence, memory, common, context);
                });
            }
            MemoryPurpose::More {
                sequence,
                memory,
                from,
                to,
            } => {
                let (from, end_at) = (from as usize, to as usize);
                let populated = memory.populate_more(MemoryUse::LargeMessage, from, end_at);
                session.requests.on_connection(|connection, _| {
                    let core = &mut connection.core;
                    let receivers = &mut core.ends.receivers;
                    let common = &mut core.common;
                    receivers.large_memory_grew(end, sequence, to, populated, common);
                });
            }
            MemoryPurpose::EagerBlocks => {
                let blocks = session.lease_eager_blocks();
                session.requests.on_connection(|connection, context| {
                    let core = &mut connection.core;
                    let (receivers, common) = (&core.ends.receivers, &mut core.common);
                    core.grants.grant(end, blocks, receivers, common, context);
                });
            }
        }
    }
}
