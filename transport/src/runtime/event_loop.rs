//! The runtime of a node: the engine behind its lock, and the threads that wait for it.
//!
//! Rules:
//!
//! 1. The engine is touched only under its lock; whoever holds the lock may run turns.
//! 2. One thread at a time, the leader, sleeps in the epoll set, without the lock. Who
//!    sleeps over what, and why nobody does, is [`Leadership`]; its bell is in the set. How
//!    threads come to lead is `waiting` and `keeper`.
//! 3. Before it sleeps the leader arms every ring and looks once more.
//! 4. Wakers collected in a turn are called after the lock is released.

use std::{
    fmt, io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use ibex_base::{fork, sync::lock};
use ibex_protocol::format::control::CloseReason;
use ibex_ring::{
    memory::{
        DEFAULT_KEPT_BUFFERS, DEFAULT_KEPT_BYTES, LargePool, MemoryBudget, MemoryClaim, RingArena,
        longest_of_class, orphans,
    },
    parking::{Bell, BellLease, Drive, Leadership, TimedOut, WaitSlot, Wakers, thread_waker},
};

use super::{
    Driver, Driving,
    control_thread::ControlThread,
    gathering::{Gatherings, Told, push_live},
    keeper,
    task::Flushing,
    waiting::Looks,
    yielding::Yielding,
};
use crate::{
    clock,
    connection::{Context, Link, LinkStats, MemoryWanted, RedialError, Redialing},
    engine::{self, Admission, ControlSource, Engine, Mark, Ready, Wait},
    node::{CloseReport, EventQueue, Warnings},
    rdma::Site,
    runtime::{Draining, ServiceNames},
    session::state::SessionShared,
    shared_memory::ControlSegments,
};

/// What a runtime is made of.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Who turns the engine.
    pub driver: Driver,
    /// How blocking calls wait on a shared-memory channel.
    pub wait: Wait,
    /// The same where the engine moves the bytes.
    pub wait_engine: Wait,
    /// Cores to run the I/O thread on; empty lets the scheduler choose.
    pub cores: Vec<usize>,
    /// The most that a tcp session lets its peer keep in flight.
    pub session_credit_bytes: u64,
    /// The most that all of them do together.
    pub node_credit_bytes: u64,
    /// The most bytes that peers may make all nodes of the process hold for this one to take in
    /// more of their large messages.
    pub memory_limit: u64,
    /// How long a peer's kernel may leave bytes unacknowledged before the connection counts as
    /// broken.
    pub notice_timeout: Duration,
    /// How long a session without a connection waits for another.
    pub session_timeout: Duration,
}

/// A node's runtime.
pub struct Runtime {
    pub(crate) config: RuntimeConfig,
    pub(crate) driving: Driving,
    pub(crate) engine: Leadership<Engine>,
    me: Weak<Self>,
    pub(crate) bell: BellLease,
    pub(crate) epoll: Arc<OwnedFd>,
    /// Changes while a thread that waits looks.
    pub(crate) presence: AtomicU32,
    /// Threads of others wanted to run where one waited that looked.
    pub(crate) shares_cores: AtomicBool,
    /// Whether waits look before they sleep.
    pub(crate) yielding: Yielding,
    /// Wakes the I/O thread, once there is one.
    pub(crate) keeper: OnceLock<Waker>,
    /// What handles left for the engine; then the leadership is marked.
    marks: Mutex<Vec<Mark>>,
    /// A guard rang since a turn last answered guards (`Driver::Caller`).
    guard_rang: AtomicBool,
    accepted: Mutex<std::collections::VecDeque<Arc<SessionShared>>>,
    accept_waiters: WaitSlot,
    /// Set before those who wait in `accept_waiters` are woken, so they find it.
    accepts_no_more: AtomicBool,
    pub(crate) draining: Draining,
    pub(crate) service_names: ServiceNames,
    gatherings: Gatherings,
    pub(crate) events: EventQueue,
    pub(crate) warnings: Arc<Warnings>,
    closed: AtomicBool,
    /// A program sleeps on the epoll set itself (`watch`).
    watched: AtomicBool,
    /// The task that sends what others have left (`Driver::Tasks`).
    pub(crate) flushing: Flushing,
    /// The driving task was dropped before the node was closed.
    pub(crate) lost_driver: AtomicBool,
    /// Somebody has begun to finish the close.
    close_ends: AtomicBool,
    /// Of the first `close`, for whoever closes again.
    pub(crate) close_report: Mutex<Option<CloseReport>>,
    close_reported: Condvar,
    pub(crate) close_waiters: WaitSlot,
    io_thread: Mutex<Option<thread::JoinHandle<()>>>,
    control_thread: ControlThread,
    pub(crate) ring_arena: RingArena,
    pub(crate) control_segments: ControlSegments,
    pub(crate) large_pool: LargePool,
    /// The same for large messages that peers write themselves: nothing else is ever in it,
    /// since they keep the keys.
    pub(crate) granted_pool: LargePool,
    /// Budget that large messages of peers are charged to.
    pub(crate) memory: MemoryBudget,
}

impl Runtime {
    /// A runtime with its I/O thread, if the driver has one.
    pub fn start(config: RuntimeConfig) -> io::Result<Arc<Self>> {
        fork::claim().map_err(io::Error::other)?;
        orphans::sweep();
        let bell = Bell::lease()?;
        let warnings = Arc::<Warnings>::default();
        let engine = Engine::new(bell.bell(), &config, warnings.clone())?;
        let memory = MemoryBudget::of_process(config.memory_limit);
        let runtime = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            epoll: engine.epoll(),
            engine: Leadership::new(engine),
            bell,
            presence: AtomicU32::new(0),
            shares_cores: AtomicBool::new(false),
            yielding: Yielding::default(),
            keeper: OnceLock::new(),
            marks: Mutex::new(Vec::new()),
            guard_rang: AtomicBool::new(false),
            accepted: Mutex::default(),
            accept_waiters: WaitSlot::new(),
            gatherings: Gatherings::default(),
            events: EventQueue::default(),
            warnings: warnings.clone(),
            accepts_no_more: AtomicBool::new(false),
            draining: Draining::default(),
            service_names: ServiceNames::default(),
            closed: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            flushing: Flushing::default(),
            lost_driver: AtomicBool::new(false),
            close_ends: AtomicBool::new(false),
            close_report: Mutex::new(None),
            close_reported: Condvar::new(),
            close_waiters: WaitSlot::new(),
            io_thread: Mutex::new(None),
            control_thread: ControlThread::default(),
            ring_arena: RingArena::new(),
            control_segments: ControlSegments::default(),
            large_pool: LargePool::within(memory, DEFAULT_KEPT_BUFFERS, DEFAULT_KEPT_BYTES),
            granted_pool: LargePool::within(memory, KEPT_GRANTS, DEFAULT_KEPT_BYTES),
            memory,
            driving: Driving::of(&config),
            config,
        });
        if runtime.driving != Driving::Thread {
            let caller: Weak<dyn Drive + Send + Sync> =
                Arc::downgrade(&(runtime.clone() as Arc<dyn Drive + Send + Sync>));
            runtime.bell.set_caller(caller);
        }
        if runtime.driving.has_thread() {
            let weak = Arc::downgrade(&runtime);
            let cores = runtime.config.cores.clone();
            let thread = thread::Builder::new()
                .name("ibex-io".to_owned())
                .spawn(move || keeper::run(&weak, &cores))?;
            *lock(&runtime.io_thread) = Some(thread);
        }
        Ok(runtime)
    }

    /// Who turns the engine.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.config.driver
    }

    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.config.wait != Wait::Event
    }

    /// The node's bell: rings wake whoever sleeps for it.
    pub(crate) fn bell(&self) -> &'static Bell {
        self.bell.bell()
    }

    /// The epoll set: readable when a turn has something to do.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The epoll set, for as long as somebody keeps it.
    #[must_use]
    pub fn epoll(&self) -> Arc<OwnedFd> {
        self.epoll.clone()
    }

    /// The epoll set, for a program that sleeps on it between turns: from now on peers ring
    /// for messages in shared memory although nobody waits in a call for them, and devices
    /// tell of completions.
    #[must_use]
    pub fn watch(&self) -> BorrowedFd<'_> {
        if fork::is_child() {
            return self.as_fd();
        }
        let is_watched = self.watched.swap(true, Ordering::Relaxed);
        if !is_watched && self.driver() == Driver::Caller {
            // Whoever polled before asking has armed nothing, and has to poll once more.
            self.bell.wake();
        }
        self.as_fd()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.driver() == Driver::Caller && self.watched.load(Ordering::Relaxed)
    }

    /// Returns whether a program or an executor sleeps on the epoll set, which then has to
    /// tell of everything.
    pub(crate) fn sleeps_elsewhere(&self) -> bool {
        self.driving == Driving::Tasks || self.is_watched()
    }

    // ---- Sessions and channels -------------------------------------------------------

    /// Puts the source of incoming sessions into the engine's care.
    pub fn set_control_source(&self, source: Box<dyn ControlSource>) -> io::Result<()> {
        self.with_engine(|engine, _| engine.set_control_source(source))
    }

    /// Takes an open device port into care before it has a session: what its device says is
    /// heard from now on, and it is closed if the device is removed.
    ///
    /// # Errors
    /// Another node has it, or it is lost.
    pub fn care_for(&self, site: &Arc<Site>) -> io::Result<()> {
        let cared = self.with_engine(|engine, _| engine.care_for(site));
        // Whoever sleeps has another time to wake up.
        self.bell.wake();
        cared
    }

    /// Takes a finished handshake over as a session.
    pub fn admit(self: &Arc<Self>, admission: Admission) -> io::Result<Arc<SessionShared>> {
        let session =
            self.with_engine(|engine, context| engine.admit(self, admission, None, context));
        // Bytes that came behind the handshake are in no socket any more: epoll is silent
        // about them, so the leader takes them in a turn of its own.
        self.bell.wake();
        session
    }

    /// Turns so far, and what the sessions counted, those that have not been forgotten.
    #[must_use]
    pub fn stats(&self) -> (u64, Vec<LinkStats>) {
        if fork::is_child() {
            return (0, Vec::new());
        }
        self.with_engine(|engine, _| engine.stats())
    }

    /// The next session that a peer dialed.
    pub fn accept(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Option<Arc<SessionShared>>, TimedOut> {
        self.wait(&self.accept_waiters, deadline, Looks::Socket, || {
            if let Some(session) = lock(&self.accepted).pop_front() {
                return Some(Some(session));
            }
            self.accepts_no_more().then_some(None)
        })
    }

    /// Refuses who dials from now on, or leaves them to others who share the socket. Sessions
    /// that are there go on, and who waits for another hears that none comes.
    pub fn stop_accepting(&self) {
        self.accepts_no_more.store(true, Ordering::Release);
        self.with_engine(|engine, context| {
            engine.stop_accepting();
            self.accept_waiters.take(&mut context.wakers);
        });
        self.bell.wake();
    }

    /// Returns true once the node begins no session any more with those who dial.
    #[must_use]
    pub fn accepts_no_more(&self) -> bool {
        self.accepts_no_more.load(Ordering::Acquire) || self.is_closed()
    }

    /// The next session that a peer dialed, if one is there.
    pub fn try_accept(&self) -> Option<Arc<SessionShared>> {
        // Only epoll knows of peers at the door.
        self.turn_in_passing(Self::poll_ready);
        lock(&self.accepted).pop_front()
    }

    /// Where those wait who accept.
    pub(crate) fn accept_waiters(&self) -> &WaitSlot {
        &self.accept_waiters
    }

    /// `told` hears of all sessions, those first that are there.
    pub(crate) fn gather(&self, told: &Arc<Told>) {
        if fork::is_child() {
            return;
        }
        self.with_engine(|engine, _| self.gatherings.add(told, engine.sessions()));
    }

    /// A session has come, by whoever's wish.
    pub(crate) fn session_came(&self, session: &Arc<SessionShared>, wakers: &mut Wakers) {
        self.gatherings
            .for_each(|told| told.session_came(session.clone(), wakers));
    }

    pub(crate) fn push_accepted(&self, session: Arc<SessionShared>, wakers: &mut Wakers) {
        push_live(&mut lock(&self.accepted), session);
        self.accept_waiters.take(wakers);
    }

    // ---- Turns -----------------------------------------------------------------------

    /// Asks epoll and runs a turn, unless someone is running one now. Returns whether there
    /// was anything to do: when it says no, the epoll set tells of whatever comes.
    pub fn poll_ready(&self) -> bool {
        if fork::is_child() {
            return false;
        }
        let moved = self.engine.try_lock().is_some_and(|mut engine| {
            // Who polls like this may sleep on the set afterwards.
            let is_told = engine.join_epoll();
            engine.note_time(clock::now());
            let ready = engine::sleep(&self.epoll, Some(Duration::ZERO));
            self.turn(engine, &ready) || !is_told
        });
        if self.driving == Driving::Tasks {
            if self.engine.has_sleeper() {
                self.settle();
            }
            return moved;
        }
        // What was armed just now may have come just before.
        moved || self.is_watched() && self.prepare_watch()
    }

    /// Arms everything for a program that sleeps on the epoll set next, and sets the alarm.
    /// Returns whether the program has to look again.
    fn prepare_watch(&self) -> bool {
        let mut engine = self.engine.lock();
        let has_armed = engine.arm_receivers();
        engine.set_alarm_for_deadline();
        has_armed
    }

    /// Runs a turn, unless someone is running one now. Returns whether it did anything.
    ///
    /// It reads hot sockets directly and asks epoll now and then only: for those who come
    /// again at once.
    pub(crate) fn poll(&self) -> bool {
        self.engine
            .try_lock()
            .is_some_and(|engine| self.turn(engine, &Ready::NOTHING))
    }

    /// A turn for a call that does not wait, where callers turn the engine. What it took in
    /// may be for other ends than the call's: a program that sleeps on the epoll set next is
    /// told to poll once more.
    pub(crate) fn turn_in_passing(&self, turn: impl FnOnce(&Self) -> bool) {
        match self.driving {
            Driving::Callers | Driving::Tasks => {
                let moved = turn(self);
                self.settle_turn(moved);
            }
            Driving::Waiters | Driving::Thread => {}
        }
    }

    /// Has the leader that sleeps, the task that is parked, or the program that sleeps on the epoll
    /// set told of what comes behind a turn that it did not run.
    pub(crate) fn settle_turn(&self, moved: bool) {
        match self.driving {
            Driving::Callers if moved => self.tell_watcher(),
            Driving::Waiters | Driving::Tasks if self.engine.has_sleeper() => self.settle(),
            _ => {}
        }
    }

    /// Has a program that sleeps on the epoll set poll once more: a turn that it did not run may
    /// have taken the event of a completion queue, which is armed again only when the program polls.
    pub(crate) fn tell_watcher(&self) {
        if self.is_watched() {
            self.bell.wake();
        }
    }

    /// The same for who comes again at once. Nothing in a fork of the process.
    pub(crate) fn poll_in_passing(&self) {
        if !fork::is_child() {
            self.turn_in_passing(Self::poll);
        }
    }

    /// The same for who has found something so often that others may long wait for a turn: it
    /// asks epoll too, since those need not be hot.
    pub(crate) fn look_around(&self) {
        self.turn_in_passing(Self::poll_ready);
    }

    /// A turn for who waits for what a completion brings: takes completions and what they
    /// lead to, and so comes by sooner again. Everything else takes [`poll`](Self::poll), as
    /// does word that somebody left.
    pub(crate) fn poll_completions(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            return false;
        };
        if self.engine.is_marked() {
            return self.turn(engine, &Ready::NOTHING);
        }
        let any = engine.has_completions();
        if any {
            let mut context = Context::new(self);
            engine.take_completions(&mut context);
            drop(engine);
            self.wake(context);
        }
        any
    }

    /// Lets out what was sent over a session of a device, for who then waits for the answer:
    /// a message that is alone without a turn, which comes first of all in the wait.
    pub(crate) fn let_out(&self, session: u64) {
        if let Some(mut engine) = self.engine.try_lock()
            && (self.engine.is_marked() || !engine.post_lone_record(session))
        {
            let moved = self.turn(engine, &Ready::NOTHING);
            self.settle_turn(moved);
        }
    }

    /// One turn under the lock, then the wakers without it.
    pub(crate) fn turn(&self, mut engine: MutexGuard<'_, Engine>, ready: &Ready) -> bool {
        // Not before the lock is there: who does not get it runs no turn.
        self.flushing.begin();
        let mut context = Context::new(self);
        let progress = engine.turn(ready, &mut context);
        let is_finished = engine.is_finished();
        drop(engine);
        self.wake(context);
        if is_finished {
            // Who closes may sleep for this, without a waker.
            match self.driving {
                Driving::Tasks => self.bell.wake(),
                _ => self.rouse_leader(),
            }
        }
        progress
    }

    /// Begins to close every session, and does not wait for the end.
    #[cfg(test)]
    pub(crate) fn begin_close(&self) {
        self.with_engine(|engine, context| engine.begin_close(None, context));
    }

    /// Receive buffers of an RDMA device that a session's peer may fill, and those that
    /// nobody may.
    #[cfg(test)]
    pub(crate) fn lent_and_free(&self, session: u64) -> (u64, u64) {
        self.with_engine(|engine, _| engine.lent_and_free(session))
    }

    /// New wires of a session have come.
    #[cfg(test)]
    pub(crate) fn resume(&self, wires: crate::connection::NewWire) {
        self.with_engine(|engine, context| engine.resume(wires, context));
    }

    /// Sessions that every turn looks at.
    #[cfg(test)]
    pub(crate) fn hot_sessions(&self) -> usize {
        self.with_engine(|engine, _| engine.hot_sessions())
    }

    /// Does something to the engine, and lets what follows from it out at once.
    pub(crate) fn with_engine<T>(&self, act: impl FnOnce(&mut Engine, &mut Context<'_>) -> T) -> T {
        let mut engine = self.engine.lock();
        let mut context = Context::new(self);
        let result = act(&mut engine, &mut context);
        let is_overslept = self.engine.has_sleeper() && engine.is_overslept();
        if self.is_watched() {
            engine.set_alarm_for_deadline();
        }
        drop(engine);
        self.wake(context);
        if is_overslept {
            self.rouse_leader();
        }
        result
    }

    /// Does something to one session; `None` if it is not there any more.
    pub(crate) fn on_link<T>(
        &self,
        session: u64,
        act: impl FnOnce(&mut Link, &mut Context<'_>) -> T,
    ) -> Option<T> {
        if fork::is_child() {
            return None;
        }
        self.with_engine(|engine, context| engine.on_link(session, context, act))
    }

    /// Wakers are the only foreign code that our threads run (rule 4).
    #[inline]
    pub(crate) fn wake(&self, context: Context<'_>) {
        if context.is_untouched() {
            // There is nothing in it to be dropped.
            mem::forget(context);
        } else {
            self.wake_all(context);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_all(&self, mut context: Context<'_>) {
        context.wakers.wake();
        for wanted in context.wanted.drain(..) {
            self.provide(wanted);
        }
        for site in context.unsure_sites.drain(..) {
            self.look_for_device(site);
        }
        for redialing in context.redialings.drain(..) {
            self.redial(redialing);
        }
        // What is left over goes with the context.
    }

    /// Gets memory for what arrives: on the caller's thread, or on the control thread
    /// where there is an I/O thread to keep going.
    fn provide(&self, wanted: MemoryWanted) {
        match self.driver() {
            Driver::Caller => wanted.provide(),
            Driver::Threads | Driver::Tasks => self.control_thread.run(move || wanted.provide()),
        }
    }

    /// Dials a session's peer again, on a thread that may block.
    fn redial(&self, redialing: Redialing) {
        let Some(runtime) = self.arc() else {
            return;
        };
        let Redialing {
            session,
            attempt,
            redial,
        } = redialing;
        let dialer = redial.clone();
        let begun = redial.run(Box::new(move || {
            let is_over = || runtime.with_engine(|engine, _| engine.is_over(session));
            let outcome = dialer.redial(attempt, &is_over);
            runtime.with_engine(|engine, context| match outcome {
                Ok(wires) => engine.resume_session(session, wires, context),
                Err(error) => {
                    engine.on_link(session, context, |link, context| match error {
                        RedialError::NotYet(why) => link.redial_failed(attempt.epoch, &why),
                        RedialError::NoSession(why) => link.is_certainly_gone(&why, context),
                    });
                }
            });
            // Whoever sleeps has other wires, or another time to wake up.
            runtime.bell.wake();
        }));
        if let Err(error) = begun {
            self.on_link(session, |link, _| {
                link.redial_failed(attempt.epoch, &error.to_string());
            });
        }
    }

    /// Charges `bytes` more to a claim; what pools keep goes before there is no room.
    pub(crate) fn charge(&self, claim: &mut MemoryClaim, bytes: u64) -> bool {
        if claim.charge(bytes) {
            return true;
        }
        let has_trimmed = self.large_pool.trim() | self.granted_pool.trim();
        has_trimmed && claim.charge(bytes)
    }

    /// The longest message that there can ever be memory for.
    #[must_use]
    pub fn longest_message(&self) -> u64 {
        longest_of_class(self.memory.limit())
    }

    pub(crate) fn notice_timeout(&self) -> Duration {
        self.config.notice_timeout
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.config.session_timeout
    }

    /// Looks whether a site's device is still there, on such a thread.
    pub(crate) fn look_for_device(&self, site: Arc<Site>) {
        let Some(runtime) = self.arc() else {
            return;
        };
        let look = move || {
            if !site.is_listed() {
                runtime.with_engine(|engine, _| engine.device_was_removed(&site));
                // Whoever leads turns the sessions, which end.
                runtime.bell.wake();
            }
        };
        match self.driver() {
            Driver::Caller => look(),
            Driver::Threads | Driver::Tasks => self.control_thread.run(look),
        }
    }

    pub(crate) fn arc(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    // ---- Marks and bells -------------------------------------------------------------

    /// Leaves word for the engine and wakes it.
    pub(crate) fn mark(&self, mark: Mark) {
        self.mark_quietly(mark, false);
    }

    /// Leaves word for the engine; wakes it unless it can wait for another reason.
    pub(crate) fn mark_quietly(&self, mark: Mark, quiet: bool) {
        let mut marks = lock(&self.marks);
        // Twice would say no more, and without this the list had no bound.
        if !marks.contains(&mark) {
            marks.push(mark);
        }
        drop(marks);
        self.engine.mark();
        if quiet {
            return;
        }
        match self.driving {
            Driving::Waiters => self.attend(),
            Driving::Callers | Driving::Tasks | Driving::Thread => self.rouse_leader(),
        }
    }

    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.engine.is_marked()
    }

    pub(crate) fn take_marks(&self, into: &mut Vec<Mark>) {
        if self.engine.take_mark() {
            into.append(&mut lock(&self.marks));
        }
    }

    /// Whether a guard rang since this was last asked (`Driver::Caller`; else the bell says
    /// so through epoll).
    pub(crate) fn guard_rang(&self) -> bool {
        self.guard_rang.load(Ordering::Acquire) && self.guard_rang.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn rouse_leader(&self) {
        self.engine.rouse(|| self.ring_sleeper());
    }

    /// Whether what a leader sleeps on may be taken: not while one does, or it sleeps on.
    pub(crate) fn may_drain(&self, engine: &Engine) -> bool {
        self.engine.may_drain(engine)
    }

    /// Forgets the bell's rings, unless they are for a leader that sleeps.
    pub(crate) fn drain_bell(&self, engine: &Engine) {
        if self.may_drain(engine) {
            self.bell.drain();
        }
    }

    // ---- The end ---------------------------------------------------------------------

    /// Whether the node was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The program gives up what it was doing: channels that it has not closed do not end in
    /// order, but with this reason.
    pub fn break_off(&self, reason: CloseReason) {
        self.with_engine(|engine, _| engine.break_off(reason));
    }

    /// Closes every channel and session in order: delivers what was sent, for up to
    /// `timeout`, and says what was not. Blocked calls of other threads return.
    ///
    /// Closing again gives the same report, at once or as soon as the first call has it;
    /// if it is still under way, the earlier of the two deadlines counts for both.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        if fork::is_child() {
            return CloseReport::default();
        }
        // Where a task drives the node, it may be gone, or wait for this very thread.
        if !self.start_close(timeout) && self.driving != Driving::Tasks {
            return self.await_close_report();
        }
        let until = || self.with_engine(|engine, _| engine.closing_ends(clock::now()));
        while let Some(deadline) = until() {
            if !self.driving.has_thread() {
                match self.engine.try_lead() {
                    Some(_lead) => self.lead(&thread_waker().1, deadline),
                    None => thread::yield_now(),
                }
            } else {
                let soon = clock::now() + CLOSE_POLL;
                let soon = deadline.map_or(soon, |deadline| deadline.min(soon));
                let _ = self.wait(&self.accept_waiters, Some(soon), Looks::Socket, || {
                    until().is_none().then_some(())
                });
            }
        }
        self.end_close()
    }

    /// Closes the node, and leaves that to its driving task where it has one ([`Driver::Tasks`]),
    /// so that the thread of an executor does not wait for it.
    pub fn close_in_passing(&self, timeout: Duration) {
        if self.driving == Driving::Tasks && !self.lost_driver.load(Ordering::Relaxed) {
            self.start_close(timeout);
        } else {
            let _ = self.close(timeout);
        }
    }

    /// Begins to close every channel and session, and does not wait for the end. Returns
    /// whether nobody has before.
    pub(crate) fn start_close(&self, timeout: Duration) -> bool {
        let is_first = !self.closed.swap(true, Ordering::AcqRel);
        // A time that the clock cannot express is for ever.
        let deadline = clock::now().checked_add(timeout);
        self.with_engine(|engine, context| {
            engine.begin_close(deadline, context);
            self.accept_waiters.take(&mut context.wakers);
            self.draining.take_waiters(&mut context.wakers);
            self.gatherings
                .for_each(|told| told.node_closes(&mut context.wakers));
        });
        // Let the I/O thread take up the new deadline, or drive it ourselves.
        self.bell.wake();
        is_first
    }

    /// Ends what is left of a node whose close has taken its time, and reports it.
    pub(crate) fn end_close(&self) -> CloseReport {
        if self.close_ends.swap(true, Ordering::AcqRel) {
            return self.await_close_report();
        }
        let report = self.with_engine(Engine::finish_close);
        // Before the I/O thread is waited for: it may be who closes again, in a waker.
        *lock(&self.close_report) = Some(report.clone());
        self.close_reported.notify_all();
        self.close_waiters.wake_all();
        self.bell.wake();
        self.summon_keeper();
        if let Some(thread) = lock(&self.io_thread).take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
        self.control_thread.stop();
        // Nobody accepts them any more, and each holds this.
        let unaccepted = mem::take(&mut *lock(&self.accepted));
        drop(unaccepted);
        orphans::sweep();
        report
    }

    /// What the first [`close`](Self::close) says, once it has.
    fn await_close_report(&self) -> CloseReport {
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

impl Drive for Runtime {
    fn drive(&self) {
        self.guard_rang.store(true, Ordering::Release);
        let turn = |engine: MutexGuard<'_, Engine>| {
            let moved = self.turn(engine, &Ready::NOTHING);
            if self.engine.has_sleeper() {
                self.settle();
            }
            if moved {
                // What the turn took in is in the epoll set no more.
                self.tell_watcher();
            }
        };
        self.engine
            .drive(turn, self.is_watched(), || self.ring_sleeper());
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Free buffers for large messages that peers write which are kept: registering one takes
/// longer than what it is for, and a stream of messages has several in use, which come back
/// together.
const KEPT_GRANTS: usize = 32;

/// How long closing sleeps before it looks again whether all is delivered.
const CLOSE_POLL: Duration = Duration::from_millis(2);
