//! The runtime of a node: its engines and their common state.

use std::{
    io,
    ops::Deref,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::{fork, sync::LentLimit};
use ibex_ring::parking::{self, AtSlot, Bell, BellLease, Condition, ReadySet, Ticket, TimedOut};

use super::{EventLoop, NodeState, PollTarget, waiting};
use crate::{
    connection::{ConnectionStats, Reconnect, SessionTotals},
    engine::{Admission, ControlSource, Engine, lendable_credit},
    node::{Notified, RuntimeConfig, SessionShared, Sessions, Warnings},
    rdma::RdmaPort,
    session::EngineId,
};

/// A node's runtime: its engines. It dereferences to the [`NodeState`] that the engines share.
pub struct Runtime {
    node: Arc<NodeState>,
    event_loops: Box<[Arc<EventLoop>]>,
}

impl Deref for Runtime {
    type Target = NodeState;

    fn deref(&self) -> &NodeState {
        &self.node
    }
}

impl Runtime {
    /// Starts a runtime, with I/O threads if the driver has some.
    pub fn start(config: RuntimeConfig) -> io::Result<Arc<Self>> {
        fork::claim().map_err(io::Error::other)?;
        let bells = (0..config.engines).map(|_| Bell::lease());
        let bells = bells.collect::<io::Result<Vec<_>>>()?;
        let sessions = Sessions::new(bells.iter().map(BellLease::bell).collect());
        let warnings = Arc::<Warnings>::default();
        let credit = Arc::new(LentLimit::new(lendable_credit(&config)));
        let mut parts = Vec::new();
        for (index, bell) in bells.into_iter().enumerate() {
            let id = EngineId::new(index);
            let shared = (sessions.clone(), credit.clone(), warnings.clone());
            parts.push((id, Engine::new(id, bell.bell(), &config, shared)?, bell));
        }
        let node = Arc::new(NodeState::new(config, warnings, sessions));
        let runtime = Arc::new_cyclic(|me| {
            let parts = parts.into_iter();
            let event_loops = parts.map(|part| EventLoop::new(part, me.clone(), node.clone()));
            Self {
                event_loops: event_loops.collect(),
                node,
            }
        });
        for event_loop in &runtime.event_loops {
            if let Err(error) = event_loop.start() {
                // This ends the threads that have started.
                let _ = runtime.close(Duration::ZERO);
                return Err(error);
            }
        }
        Ok(runtime)
    }

    /// Returns the state that the engines share.
    #[must_use]
    pub fn state(&self) -> &Arc<NodeState> {
        &self.node
    }

    /// Returns the engines, each in its event loop.
    #[must_use]
    pub fn event_loops(&self) -> &[Arc<EventLoop>] {
        &self.event_loops
    }

    /// Returns the engine of this number.
    pub(crate) fn event_loop(&self, engine: EngineId) -> &Arc<EventLoop> {
        &self.event_loops[engine.index()]
    }

    /// Returns the first engine, which has the listener. Where calls turn engines, calls that wait
    /// for no particular session turn this one.
    pub(crate) fn first(&self) -> &Arc<EventLoop> {
        &self.event_loops[0]
    }

    /// Wakes the sleepers of all engines.
    pub(crate) fn wake_engines(&self) {
        self.sessions.wake_engines();
    }

    /// Returns the first engine's epoll set, which is readable when a turn has something to do.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.first().as_fd()
    }

    /// Returns the first engine's epoll set, for a program that sleeps on it between turns. See
    /// [`EventLoop::watch`].
    #[must_use]
    pub fn watch(&self) -> BorrowedFd<'_> {
        self.first().watch()
    }

    // ---- Sessions and channels -------------------------------------------------------

    /// Puts the node's listener and dialer into the first engine's care.
    pub fn set_controls(&self, source: Box<dyn ControlSource>) -> io::Result<()> {
        let first = self.first();
        first.with_engine(|engine, _| engine.controls.set(source, &first.epoll))
    }

    /// Takes an open device port into the care of its engine before it has a session. From now on
    /// the engine handles the device's events, and closes the port if the device is removed.
    ///
    /// # Errors Another node has the port, or the port is lost.
    pub fn attach_port(&self, rdma_port: &Arc<RdmaPort>) -> io::Result<()> {
        let event_loop = &self.event_loops[rdma_port.engine()];
        let cared = event_loop.with_engine(|engine, context| {
            engine
                .ports
                .attach(rdma_port, &mut engine.connections, context)
        });
        // The sleeper must take up its new deadline.
        event_loop.bell.wake();
        cared
    }

    /// Makes a session of a finished handshake.
    pub fn admit(self: &Arc<Self>, admission: Admission) -> io::Result<Arc<SessionShared>> {
        let (engine, admission) = admission.place(&self.sessions);
        let event_loop = self.event_loop(engine);
        let runtime = self.clone();
        let session = event_loop
            .with_engine(|engine, context| engine.admit(runtime, admission, None, context));
        // Bytes that came after the handshake were read from the socket already. Epoll does not
        // report them, so the leader takes them in a turn of its own.
        event_loop.bell.wake();
        session
    }

    /// Returns how many sessions each engine has.
    #[must_use]
    pub fn loads(&self) -> Vec<usize> {
        self.sessions.loads()
    }

    /// Returns the engine of the session with this name in which this node dials, if `dials`, or
    /// otherwise accepts.
    #[must_use]
    pub fn engine_of(&self, session: &[u8; 16], dials: bool) -> Option<EngineId> {
        let has = |event_loop: &&Arc<EventLoop>| {
            let is_meant = |one: &Reconnect| one.dials() == dials;
            let named =
                event_loop.with_engine(|engine, _| engine.connections.named(session, is_meant));
            named.is_some()
        };
        let event_loop = self.event_loops.iter().find(has);
        event_loop.map(|event_loop| event_loop.id())
    }

    /// Returns the counts of each engine and of its sessions, except sessions that the engine has
    /// forgotten.
    #[must_use]
    pub fn stats(&self) -> Vec<EngineCounts> {
        if fork::is_child() {
            return Vec::new();
        }
        let stats = |event_loop: &Arc<EventLoop>| {
            let (turns, connections, ended) = event_loop.with_engine(|engine, _| engine.stats());
            EngineCounts {
                engine: event_loop.id(),
                turns,
                connections,
                ended,
            }
        };
        self.event_loops.iter().map(stats).collect()
    }

    /// Returns the sessions that are not over, in no order.
    #[must_use]
    pub fn sessions(&self) -> Vec<Arc<SessionShared>> {
        if fork::is_child() {
            return Vec::new();
        }
        let sessions = |event_loop: &Arc<EventLoop>| {
            event_loop.with_engine(|engine, _| engine.connections.sessions(None))
        };
        let all = self.event_loops.iter().flat_map(sessions);
        all.filter(|session| !session.is_gone()).collect()
    }

    /// Waits for the next session that a peer dialed.
    pub fn accept(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Option<Arc<SessionShared>>, TimedOut> {
        self.wait_at(&self.accept_waiters, deadline, || self.next_accepted())
    }

    /// Waits as [`accept`](Self::accept) does, for a task; `None` when the node is closed. While it
    /// is pending, the waker is left under `held`.
    pub fn poll_accept(
        &self,
        held: &mut Option<Ticket>,
        waker: &Waker,
    ) -> Poll<Option<Arc<SessionShared>>> {
        parking::poll(
            AtSlot::new(&self.accept_waiters, held, || self.next_accepted()),
            waker,
            || self.poll_all(),
        )
    }

    /// Takes back the waker that [`poll_accept`](Self::poll_accept) left.
    pub fn leave_accept(&self, held: &mut Option<Ticket>) {
        self.accept_waiters.leave(held);
    }

    /// Returns the next session that a peer dialed, or `None` within if none will come.
    fn next_accepted(&self) -> Option<Option<Arc<SessionShared>>> {
        // The flag is read first, so that no session which came before it is missed.
        let is_last = self.accepts_no_more();
        let next = self.take_accepted().map(Some);
        next.or_else(|| is_last.then_some(None))
    }

    /// Refuses peers that dial from now on, or leaves them to other processes that share the
    /// socket. Present sessions go on. Calls that wait for another session learn that none will
    /// come.
    pub fn stop_accepting(&self) {
        // REFUSE, pairs with `NodeState::accepts_no_more`.
        self.accepts_no_more.store(true, Ordering::Release);
        self.first().with_engine(|engine, context| {
            engine.controls.stop_accepting();
            self.accept_waiters.take(&mut context.wakers);
        });
        self.first().bell.wake();
    }

    /// Returns the next session that a peer dialed, if there is one.
    pub fn try_accept(&self) -> Option<Arc<SessionShared>> {
        // Only epoll reports peers that are dialing.
        self.poll_all();
        self.take_accepted()
    }

    /// Reports sessions to `gathering`: first those that exist, and then those that come. If
    /// `subscribed` is a name, only sessions count whose peers await a sending end of it.
    pub(crate) fn gather(&self, gathering: &Arc<ReadySet<Notified>>, subscribed: Option<&str>) {
        if fork::is_child() {
            return;
        }
        for event_loop in &self.event_loops {
            event_loop.with_engine(|engine, context| {
                let sessions = engine.connections.sessions(subscribed);
                let gatherings = &event_loop.gatherings;
                gatherings.add(gathering, subscribed, sessions, &mut context.wakers);
            });
        }
    }

    // ---- Turns and waits -------------------------------------------------------------

    /// Asks epoll and runs a turn of each engine, unless another thread is running one now. Returns
    /// whether there was anything to do. If not, the epoll set reports everything that comes later.
    pub fn poll_ready(&self) -> bool {
        let event_loops = self.event_loops.iter();
        event_loops.fold(false, |moved, event_loop| event_loop.poll_ready() | moved)
    }

    /// Runs a turn of each engine for a call that does not wait, where callers turn engines.
    pub fn poll_in_passing(&self) {
        let event_loops = self.event_loops.iter();
        event_loops.for_each(|event_loop| event_loop.poll_in_passing());
    }

    /// Runs a turn of each engine that also asks epoll.
    pub(crate) fn poll_all(&self) {
        let event_loops = self.event_loops.iter();
        event_loops.for_each(|event_loop| event_loop.poll_all());
    }

    /// Waits until `condition` holds, through events of any engine. Each engine is led meanwhile.
    pub fn wait<C: Condition>(
        &self,
        deadline: Option<Instant>,
        poll_target: PollTarget,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        let others = &self.event_loops[1..];
        waiting::wait_for_any((self.first(), others), deadline, poll_target, condition)
    }
}

/// Counts of an engine, and its sessions.
#[derive(Debug)]
pub struct EngineCounts {
    /// Number of the engine.
    pub engine: EngineId,
    /// Turns so far.
    pub turns: u64,
    /// Sessions, the oldest first.
    pub connections: Vec<ConnectionStats>,
    /// The counts of sessions that are over and forgotten.
    pub ended: SessionTotals,
}

/// Steps by which tests drive a node that has one engine.
#[cfg(test)]
impl Runtime {
    /// Begins to close every session, and does not wait for the end.
    pub(crate) fn begin_close(&self) {
        self.sessions.begin_close();
        self.first()
            .with_engine(|engine, context| engine.begin_close(None, context));
    }

    /// Returns the number of an RDMA device's receive buffers that a session's peer may fill, and
    /// the number that no peer may fill.
    pub(crate) fn lent_and_free(&self, session: u64) -> (u64, u64) {
        self.first()
            .with_engine(|engine, _| engine.connections.credit.lent_and_free(session))
    }

    /// Resumes a session over its new wire.
    pub(crate) fn resume(&self, wires: crate::connection::NewWire) {
        self.first()
            .with_engine(|engine, context| engine.resume(wires, context));
    }

    /// Delivers the outcome of a redial.
    pub(crate) fn redialed(&self, redialed: crate::connection::Redialed) {
        self.first()
            .with_engine(|engine, context| engine.redialed(redialed, context));
    }

    /// Returns the number of sessions that every turn looks at.
    pub(crate) fn hot_sessions(&self) -> usize {
        self.first()
            .with_engine(|engine, _| engine.connections.hot_sessions())
    }

    /// Checks that an RDMA port's device still exists.
    pub(crate) fn check_for_device(&self, rdma_port: Arc<RdmaPort>) {
        self.first().check_for_device(rdma_port);
    }
}

ibex_base::debug_fields!([] Runtime: |runtime| config = runtime.config);
