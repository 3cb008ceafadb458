//! The event loop of an engine: the engine with its lock, bell, epoll set, marks, mail and thread.
//!
//! Rules:
//!
//! 1. A thread touches the engine only under its lock. Any thread that holds the lock may run
//!    turns.
//! 2. One thread at a time, the leader, sleeps in the epoll set, without the lock. [`Leadership`]
//!    states what it sleeps over, and why no wake-up is lost; its bell is in the set. `waiting`
//!    and `keeper` decide which thread leads.
//! 3. Before it sleeps, the leader arms every ring and looks once more.
//! 4. Wakers collected in a turn are called after the lock is released. The reactor of an executor
//!    is called under the lock, and may call the waker of the driving task there: it has to queue
//!    the task, and not to run it at once.
//! 5. No thread holds the locks of two engines. An engine that has something for another leaves it
//!    as mail and rings the other's bell.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, MutexGuard, OnceLock, Weak, atomic::Ordering},
    task::Waker,
    thread,
    time::Duration,
};

use ibex_base::{
    fork,
    sync::{AtomicBool, AtomicU32, Mutex, lock},
    threads,
    turn::RunningTurn,
};
use ibex_ring::parking::{BellLease, Leadership};

use super::{
    Driver, Driving, NodeState, Runtime, inbox::EngineInbox, keeper, own_thread::OwnThread,
    task::Flushing, yielding::Yielding,
};
use crate::{
    clock,
    connection::{Connection, Context},
    engine::{self, Engine, Mail, ReadyWires},
    node::{Gatherings, Mark},
    session::EngineId,
    wire::Reports,
};

/// An engine of a node, with the parts that its threads use to run it.
///
/// Each begins on a cache line of its own, because engines run in parallel.
#[repr(align(128))]
pub struct EventLoop {
    id: EngineId,
    pub(super) me: Weak<Self>,
    runtime: Weak<Runtime>,
    pub(crate) node: Arc<NodeState>,
    pub(crate) engine: Leadership<Engine>,
    /// A ring wakes the thread or task that sleeps for the engine.
    pub(crate) bell: BellLease,
    pub(crate) epoll: Arc<OwnedFd>,
    /// A count that changes while waiting threads look.
    pub(crate) presence: AtomicU32,
    /// True if the last spinning thread found that other threads wanted its core.
    pub(crate) shares_cores: AtomicBool,
    /// Tells waits to sleep at once while a yield takes long.
    pub(crate) yielding: Yielding,
    /// Wakes the I/O thread, once there is one.
    pub(crate) keeper: OnceLock<Waker>,
    inbox: EngineInbox,
    /// Gatherings that get events of the engine's sessions.
    pub(super) gatherings: Gatherings,
    /// True if a program sleeps on the epoll set itself (`watch`).
    watched: AtomicBool,
    /// The task that sends what other tasks have published (`Driver::Tasks`).
    pub(crate) flushing: Flushing,
    /// What the executor's reactor has reported (`Driver::Tasks`).
    pub(super) reports: Arc<Reports>,
    /// The reactor may watch connections.
    pub(super) has_reactor: AtomicBool,
    io_thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// The way to that thread.
    pub(super) own_thread: OwnThread,
}

impl EventLoop {
    /// Makes an event loop that no thread runs yet.
    pub(super) fn new(
        (id, mut engine, bell): (EngineId, Engine, BellLease),
        runtime: Weak<Runtime>,
        node: Arc<NodeState>,
    ) -> Arc<Self> {
        let posted = runtime.clone();
        let post = move |engine, mail| {
            if let Some(runtime) = posted.upgrade() {
                runtime.event_loop(engine).post(mail);
            }
        };
        engine.join(runtime.clone(), Box::new(post));
        Arc::new_cyclic(|me| Self {
            id,
            me: me.clone(),
            runtime,
            node,
            epoll: engine.epoll(),
            engine: Leadership::new(engine),
            bell,
            presence: AtomicU32::new(0),
            shares_cores: AtomicBool::new(false),
            yielding: Yielding::default(),
            keeper: OnceLock::new(),
            inbox: EngineInbox::default(),
            gatherings: Gatherings::default(),
            watched: AtomicBool::new(false),
            flushing: Flushing::default(),
            reports: Arc::default(),
            has_reactor: AtomicBool::new(false),
            io_thread: Mutex::new(None),
            own_thread: OwnThread::default(),
        })
    }

    /// Starts the I/O thread, if the driver has one.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        let driving = self.node.driving;
        if driving != Driving::Thread {
            let weak = Arc::downgrade(self);
            // An engine that is ending looks for news itself.
            self.bell.set_caller(move || {
                if let Some(event_loop) = weak.upgrade() {
                    event_loop.drive();
                }
            });
        }
        if driving.has_thread() {
            let weak = Arc::downgrade(self);
            let core = self.node.config.core_of(self.id);
            let name = match self.node.config.engines {
                1 => "ibex-io".to_owned(),
                _ => format!("ibex-io-{}", self.id),
            };
            let jobs = self.own_thread.jobs();
            let thread = threads::spawn(name, move || keeper::run(&weak, core, &jobs))?;
            *lock(&self.io_thread) = Some(thread);
        }
        Ok(())
    }

    /// Waits for the end of the I/O thread, if there is one and it is not the calling thread.
    pub(super) fn join(&self) {
        self.summon_keeper();
        if let Some(thread) = lock(&self.io_thread).take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Returns the number of the engine in its node.
    #[must_use]
    pub fn id(&self) -> EngineId {
        self.id
    }

    /// Returns the runtime that the event loop belongs to, unless the runtime is gone.
    pub(crate) fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.upgrade()
    }

    /// Returns the epoll set, which is readable when a turn has something to do.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the epoll set, which stays open for as long as the caller keeps it.
    #[must_use]
    pub fn epoll(&self) -> Arc<OwnedFd> {
        self.epoll.clone()
    }

    /// Returns the epoll set, for a program that sleeps on it between turns. From now on peers ring
    /// for messages in shared memory although no call waits for them, and devices report
    /// completions.
    #[must_use]
    pub fn watch(&self) -> BorrowedFd<'_> {
        if fork::is_child() {
            return self.as_fd();
        }
        let is_watched = self.watched.swap(true, Ordering::Relaxed);
        if !is_watched && self.node.driver() == Driver::Caller {
            self.engine.lock().watch_all();
            // A program that polled before this call has armed nothing, and must poll once more.
            self.bell.wake();
        }
        self.as_fd()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.node.driver() == Driver::Caller && self.watched.load(Ordering::Relaxed)
    }

    // ---- Turns -----------------------------------------------------------------------

    /// Asks epoll and runs a turn, unless another thread is running one now. Returns whether there
    /// was anything to do. If not, the epoll set reports everything that comes later.
    pub fn poll_ready(&self) -> bool {
        if fork::is_child() {
            return false;
        }
        let moved = self.engine.try_lock().is_some_and(|mut engine| {
            // The caller may sleep on the epoll set next, so the set must report every session.
            let is_notified = engine.join_epoll();
            engine.note_time(clock::now());
            let mut ready = ReadyWires::NOTHING;
            engine::sleep(&self.epoll, Some(Duration::ZERO), &mut ready);
            self.turn(engine, &ready) || !is_notified
        });
        if self.node.driving == Driving::Tasks {
            if self.engine.has_sleeper() {
                self.settle();
            }
            return moved;
        }
        if moved || !self.is_watched() {
            return moved;
        }
        // Everything is armed for a program that sleeps on the epoll set next. It has to look again
        // if an event may have come just before.
        let mut engine = self.engine.lock();
        let has_armed = engine.arm_receivers();
        engine.set_alarm_for_deadline();
        has_armed
    }

    /// Runs a turn, unless another thread is running one now. Returns whether the turn did
    /// anything.
    ///
    /// The turn reads hot sockets directly and asks epoll only now and then. This is for callers
    /// that come again at once.
    pub(crate) fn poll(&self) -> bool {
        self.engine
            .try_lock()
            .is_some_and(|engine| self.turn(engine, &ReadyWires::NOTHING))
    }

    /// Runs a turn for a call that does not wait, where callers turn the engine. The turn may take
    /// in events of other ends than the call's. So a program that sleeps on the epoll set next is
    /// told to poll once more.
    pub(crate) fn turn_in_passing(&self, turn: impl FnOnce(&Self) -> bool) {
        match self.node.driving {
            Driving::Callers | Driving::Tasks => {
                let moved = turn(self);
                self.settle_turn(moved);
            }
            Driving::Waiters | Driving::Thread => {}
        }
    }

    /// Makes sure that the sleeping leader, the parked task, or the program that sleeps on the
    /// epoll set learns of events after a turn that it did not run.
    pub(crate) fn settle_turn(&self, moved: bool) {
        match self.node.driving {
            Driving::Callers if moved => self.tell_watcher(),
            Driving::Waiters | Driving::Tasks if self.engine.has_sleeper() => self.settle(),
            _ => {}
        }
    }

    /// Makes a program that sleeps on the epoll set poll once more. A turn that the program did not
    /// run may have taken the event of a completion queue, which is armed again only when the
    /// program polls.
    pub(crate) fn tell_watcher(&self) {
        if self.is_watched() {
            self.bell.wake();
        }
    }

    /// Like `poll_all`, for a thread that comes again at once. Does nothing in a fork of the
    /// process.
    pub(crate) fn poll_in_passing(&self) {
        if !fork::is_child() {
            self.turn_in_passing(Self::poll);
        }
    }

    /// Runs a turn that also asks epoll. This is for a thread that has found events so often that
    /// other sessions, which need not be hot, may have waited long for a turn.
    pub(crate) fn poll_all(&self) {
        self.turn_in_passing(Self::poll_ready);
    }

    /// Runs the part of a turn that a thread needs which waits for a completion: handles
    /// completions and sends what they allow. This is short, so the thread looks again sooner. If
    /// there are events for the engine, runs a whole turn instead. [`poll`](Self::poll) does
    /// everything else.
    pub(crate) fn poll_completions(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            return false;
        };
        if self.engine.is_marked() {
            return self.turn(engine, &ReadyWires::NOTHING);
        }
        let any = engine.ports.has_completions();
        if any {
            let turn = begin_turn();
            let mut context = self.context();
            engine.take_completions(&mut context);
            drop(engine);
            drop(turn);
            self.wake(context);
        }
        any
    }

    /// Transmits messages of a session over a device, for a caller that then waits for the answer.
    /// A message that is alone goes out without a turn, because the wait begins with one.
    pub(crate) fn let_out(&self, session: u64) {
        if let Some(mut engine) = self.engine.try_lock()
            && (self.engine.is_marked() || !engine.post_lone_record(session))
        {
            let moved = self.turn(engine, &ReadyWires::NOTHING);
            self.settle_turn(moved);
        }
    }

    /// Runs one turn under the lock, and then its wakers without the lock.
    pub(crate) fn turn(&self, mut engine: MutexGuard<'_, Engine>, ready: &ReadyWires) -> bool {
        let mut context = self.context();
        let progress = self.turn_engine(&mut engine, ready, &mut context);
        self.end_turn(engine, context);
        progress
    }

    /// Takes in the events that other threads have left, and turns the engine. Every turn begins
    /// here: a turn that took in no events would let the session that keeps the engine busy hold up
    /// what handles of all others have left.
    #[inline]
    pub(super) fn turn_engine(
        &self,
        engine: &mut Engine,
        ready: &ReadyWires,
        context: &mut Context<'_>,
    ) -> bool {
        // This comes after the lock, because a thread that does not get the lock runs no turn.
        self.flushing.begin();
        let _turn = begin_turn();
        let mut progress = self.engine.is_marked() && self.take_changes(engine, context);
        engine.connections.answer_guards(context);
        progress |= engine.turn(ready, context);
        progress
    }

    /// Gives the lock back after a turn, and runs the turn's wakers and deferred work.
    pub(super) fn end_turn(&self, engine: MutexGuard<'_, Engine>, context: Context<'_>) {
        let is_finished = engine.is_finished();
        drop(engine);
        self.wake(context);
        if is_finished {
            // A thread that closes the node may sleep, without a waker, until its engines are
            // finished.
            match self.node.driving {
                Driving::Tasks => self.bell.wake(),
                _ => self.rouse_leader(),
            }
        }
    }

    /// Calls `act` with the engine, and then runs the resulting wakers and deferred work.
    pub(crate) fn with_engine<T>(&self, act: impl FnOnce(&mut Engine, &mut Context<'_>) -> T) -> T {
        let mut engine = self.engine.lock();
        if self.engine.is_marked() {
            self.inbox.warn_of_unpolled();
        }
        let turn = begin_turn();
        let mut context = self.context();
        let result = act(&mut engine, &mut context);
        let is_overslept = self.engine.has_sleeper() && engine.is_overslept();
        if self.is_watched() {
            engine.set_alarm_for_deadline();
        }
        drop(engine);
        drop(turn);
        self.wake(context);
        if is_overslept {
            self.rouse_leader();
        }
        result
    }

    /// Calls `act` with one session; `None` if the session does not exist any more.
    pub(crate) fn on_connection<T>(
        &self,
        session: u64,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        if fork::is_child() {
            return None;
        }
        self.with_engine(|engine, context| engine.on_connection(session, context, act))
    }

    /// Runs a turn for a ring of the bell, or leaves it to the thread that runs one now.
    fn drive(&self) {
        let turn = |engine: MutexGuard<'_, Engine>| {
            let moved = self.turn(engine, &ReadyWires::NOTHING);
            if self.engine.has_sleeper() {
                self.settle();
            }
            if moved {
                // The epoll set no longer shows the events that the turn has taken in.
                self.tell_watcher();
            }
        };
        self.engine
            .drive(turn, self.is_watched(), || self.ring_sleeper());
    }

    /// Makes the context of a turn. The caller holds the engine's lock.
    pub(super) fn context(&self) -> Context<'_> {
        let may_drain = self.engine.may_drain();
        Context::new(&self.node, self.bell.bell(), may_drain, &self.gatherings)
    }

    // ---- Marks and bells -------------------------------------------------------------

    /// Leaves a mark for the engine. Wakes the engine's sleeper, unless `quiet`: then the mark may
    /// wait for the next turn.
    pub(crate) fn mark_quietly(&self, mark: Mark, quiet: bool) {
        let awaits_call = self.node.driving == Driving::Callers;
        self.inbox.leave_mark(mark, awaits_call);
        self.engine.mark();
        if quiet {
            return;
        }
        match self.node.driving {
            Driving::Waiters => self.run_claimed(),
            Driving::Callers | Driving::Tasks | Driving::Thread => self.rouse_leader(),
        }
    }

    /// Leaves mail for the engine and wakes its sleeper. The caller may hold another engine's lock,
    /// so this calls no waker.
    pub(crate) fn post(&self, mail: Mail) {
        self.inbox.leave_mail(mail);
        self.engine.mark();
        self.rouse_somebody();
    }

    /// Makes the engine take in the marks and mail that were left. Returns whether there were any.
    #[inline(never)]
    pub(super) fn take_changes(&self, engine: &mut Engine, context: &mut Context<'_>) -> bool {
        if !self.engine.take_mark() {
            return false;
        }
        let mut marks = mem::take(&mut engine.marks);
        let mail = self.inbox.take(&mut marks);
        let any = engine.take_changes(&mut marks, mail, context);
        engine.marks = marks;
        any
    }

    pub(crate) fn rouse_leader(&self) {
        self.engine.rouse(|| self.ring_sleeper());
    }
}

/// Marks that the calling thread runs a turn. Only this crate's tests look for it, because handshakes,
/// which the sources of sessions turn, still destroy queue pairs that no session takes.
fn begin_turn() -> Option<RunningTurn> {
    cfg!(test).then(RunningTurn::begin)
}

ibex_base::debug_fields!([] EventLoop: |events| id = events.id);
