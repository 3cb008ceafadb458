//! State of a node that its engines share.
//!
//! Rule: nothing here is written for a message that fits a ring. The node has the state of sessions
//! that come and go, of events and warnings, and of the memory of long messages. State that a
//! message touches belongs to its engine or its session.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Condvar, OnceLock, PoisonError, atomic::Ordering},
    time::Duration,
};

use ibex_base::{
    Workers,
    sync::{AtomicBool, LentLimit, Mutex, lock},
};
use ibex_protocol::format::trace_context::TraceContext;
use ibex_ring::{
    memory::{
        DEFAULT_KEPT_BUFFERS, DEFAULT_KEPT_BYTES, LargePool, MemoryBudget, MemoryClaim, RingArena,
        longest_of_class,
    },
    parking::{WaitSlot, Wakers},
};

use super::{
    CloseReport, Driver, Driving, EventQueue, RuntimeConfig, SessionShared, Sessions,
    SlowMessageFacts, SlowMessages, Wait, Warnings, draining::Draining, held_tasks::HeldTasks,
    histograms::Histograms, taken_names::TakenNames, unopened::UNOPENED_BYTES,
};
use crate::{clock, shared_memory::ControlSegments};

/// State of a node that its engines share.
pub struct NodeState {
    pub(crate) config: RuntimeConfig,
    pub(crate) driving: Driving,
    pub(crate) held_tasks: HeldTasks,
    pub(crate) sessions: Sessions,

    // Sessions that peers dialed.
    accepted: Mutex<VecDeque<Arc<SessionShared>>>,
    pub(crate) accept_waiters: WaitSlot,
    /// Set before the waiters in `accept_waiters` are woken, so that they find it.
    pub(crate) accepts_no_more: AtomicBool,

    pub(super) names: TakenNames,

    // Calls.
    pub(crate) draining: Draining,
    /// Tells the trace context of the calling thread or task, if the program has a tracer.
    trace_context: OnceLock<fn() -> Option<TraceContext>>,

    // Changes.
    pub(crate) events: EventQueue,
    pub(crate) warnings: Arc<Warnings>,
    /// Set if the node keeps histograms.
    pub(crate) histograms: OnceLock<Histograms>,
    /// The slowest messages, if the node is inspected. Otherwise nobody takes times.
    pub(crate) slow: Option<SlowMessages>,

    // The end.
    pub(crate) closed: AtomicBool,
    /// True if the driving task was dropped before the node was closed.
    pub(crate) lost_driver: AtomicBool,
    /// True once a call has begun to finish the close.
    pub(crate) close_ends: AtomicBool,
    /// Held by each connection that stays behind its session to tell the peer why that has ended.
    pub(crate) partings: Arc<()>,
    /// Report of the first `close`, for later ones.
    pub(crate) close_report: Mutex<Option<CloseReport>>,
    pub(crate) close_reported: Condvar,
    pub(crate) close_waiters: WaitSlot,

    // Memory, and the thread that gets it.
    pub(crate) control_thread: Workers,
    pub(crate) ring_arena: RingArena,
    pub(crate) control_segments: ControlSegments,
    pub(crate) large_pool: LargePool,
    /// Memory for large messages that peers write themselves. It never holds anything else, because
    /// peers keep the keys.
    pub(crate) granted_pool: LargePool,
    /// Budget that large messages of peers are charged to.
    pub(crate) memory: MemoryBudget,
    /// What is left of [`UNOPENED_BYTES`].
    pub(super) unopened: Arc<LentLimit>,
}

impl NodeState {
    /// Makes the state of a node whose engines have no session yet.
    pub(crate) fn new(config: RuntimeConfig, warnings: Arc<Warnings>, sessions: Sessions) -> Self {
        let memory = MemoryBudget::of_process(config.memory_limit);
        Self {
            driving: Driving::of(&config),
            held_tasks: HeldTasks::default(),
            sessions,
            accepted: Mutex::default(),
            accept_waiters: WaitSlot::new(),
            accepts_no_more: AtomicBool::new(false),
            draining: Draining::default(),
            names: TakenNames::default(),
            trace_context: OnceLock::new(),
            events: EventQueue::default(),
            warnings,
            histograms: OnceLock::new(),
            slow: config.is_inspected.then(SlowMessages::default),
            closed: AtomicBool::new(false),
            lost_driver: AtomicBool::new(false),
            close_ends: AtomicBool::new(false),
            partings: Arc::default(),
            close_report: Mutex::new(None),
            close_reported: Condvar::new(),
            close_waiters: WaitSlot::new(),
            control_thread: Workers::new("ibex-control", 1),
            ring_arena: RingArena::new(),
            control_segments: ControlSegments::default(),
            large_pool: LargePool::within(memory, DEFAULT_KEPT_BUFFERS, DEFAULT_KEPT_BYTES),
            granted_pool: LargePool::within(memory, KEPT_GRANTS, DEFAULT_KEPT_BYTES),
            memory,
            unopened: Arc::new(LentLimit::new(UNOPENED_BYTES)),
            config,
        }
    }

    /// Returns the threads or tasks that turn the engines.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.config.driver
    }

    /// Sets a function that tells whether a blocking call on the calling thread holds up all tasks
    /// of the runtime that drives the node. A call that does so for long is logged as a warning.
    pub fn ask_for_held_tasks(&self, ask: fn() -> bool) {
        self.held_tasks.ask_by(ask);
    }

    /// Sets the function that tells the trace context of the calling thread or task. The first one
    /// stays.
    pub fn ask_for_trace_context(&self, current: fn() -> Option<TraceContext>) {
        let _ = self.trace_context.set(current);
    }

    /// Returns whether there is such a function.
    #[must_use]
    pub fn asks_for_trace_context(&self) -> bool {
        self.trace_context.get().is_some()
    }

    /// Returns the trace context of the calling thread or task.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.trace_context.get().and_then(|current| current())
    }

    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.config.wait != Wait::Event
    }

    pub(crate) fn notice_timeout(&self) -> Duration {
        self.config.notice_timeout
    }

    /// Returns for how long a session may be without a connection.
    #[must_use]
    pub fn session_timeout(&self) -> Duration {
        self.config.session_timeout
    }

    pub(crate) fn peer_gone_after(&self) -> Duration {
        self.config.peer_gone_after
    }

    // ---- Sessions --------------------------------------------------------------------

    pub(crate) fn push_accepted(&self, session: Arc<SessionShared>, wakers: &mut Wakers) {
        push_live(&mut lock(&self.accepted), session, |session| {
            session.is_over()
        });
        self.accept_waiters.take(wakers);
    }

    pub(crate) fn take_accepted(&self) -> Option<Arc<SessionShared>> {
        lock(&self.accepted).pop_front()
    }

    /// Drops the sessions that no call will accept, because each of them holds its runtime.
    pub(crate) fn forget_accepted(&self) {
        let unaccepted = mem::take(&mut *lock(&self.accepted));
        drop(unaccepted);
    }

    /// Returns true once the node refuses new sessions of peers that dial.
    #[must_use]
    pub fn accepts_no_more(&self) -> bool {
        // REFUSE, pairs with `Runtime::stop_accepting`: the queue is looked at after this.
        self.accepts_no_more.load(Ordering::Acquire) || self.is_closed()
    }

    /// Returns the slowest messages of the last minute, the slowest first; none unless the node is
    /// inspected.
    #[must_use]
    pub fn slow_messages(&self) -> Vec<SlowMessageFacts> {
        let slow = self.slow.as_ref();
        slow.map_or_else(Vec::new, |slow| slow.of_last_minute(clock::now()))
    }

    // ---- Memory ----------------------------------------------------------------------

    /// Charges `bytes` more to a claim. If there is no room, pools first free the memory that they
    /// keep.
    pub(crate) fn charge(&self, claim: &mut MemoryClaim, bytes: u64) -> bool {
        if claim.charge(bytes) {
            return true;
        }
        let has_trimmed = self.large_pool.trim() | self.granted_pool.trim();
        has_trimmed && claim.charge(bytes)
    }

    /// Returns the length of the longest message for which there can ever be memory.
    #[must_use]
    pub fn longest_message(&self) -> u64 {
        longest_of_class(self.memory.limit())
    }

    /// Returns the bytes of long messages that all nodes of the process hold, and the most that they
    /// may hold while this node takes in more.
    #[must_use]
    pub fn long_message_bytes(&self) -> (u64, u64) {
        (self.memory.used(), self.memory.limit())
    }

    // ---- The end ---------------------------------------------------------------------

    /// Returns whether the node was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // CLOSED, pairs with `Runtime::start_close`: a thread that sees it sees whether the driver
        // was lost before.
        self.closed.load(Ordering::Acquire)
    }

    /// Returns whether the node was closed because its driving task was dropped.
    #[must_use]
    pub fn has_lost_driver(&self) -> bool {
        self.lost_driver.load(Ordering::Relaxed)
    }

    /// Waits for the report of the first close.
    pub(crate) fn await_close_report(&self) -> CloseReport {
        let mut report = lock(&self.close_report);
        loop {
            if let Some(report) = &*report {
                return report.clone();
            }
            report = self
                .close_reported
                .wait(report)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

ibex_base::debug_fields!([] NodeState: |state| config = state.config);

/// Number of free buffers that are kept for large messages that peers write. Registering a buffer
/// takes longer than the transfer into it. A stream of messages has several buffers in use, which
/// come back together.
const KEPT_GRANTS: usize = 32;

/// Appends what tells of a session that has come. Before the queue grows, the entries of sessions
/// that are over already are dropped. So a queue that is never emptied has at most twice as many
/// entries as there are live sessions.
pub(crate) fn push_live<T>(queue: &mut VecDeque<T>, entry: T, is_over: impl Fn(&T) -> bool) {
    if queue.len() == queue.capacity() {
        queue.retain(|entry| !is_over(entry));
    }
    queue.push_back(entry);
}
