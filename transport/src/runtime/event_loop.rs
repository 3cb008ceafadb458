//! An engine with what it has for itself: its lock, bell, epoll set, marks, mail and thread.
//!
//! Rules:
//!
//! 1. The engine is touched only under its lock; whoever holds the lock may run turns.
//! 2. One thread at a time, the leader, sleeps in the epoll set, without the lock. Who
//!    sleeps over what, and why nobody does, is [`Leadership`]; its bell is in the set. How
//!    threads come to lead is `waiting` and `keeper`.
//! 3. Before it sleeps the leader arms every ring and looks once more.
//! 4. Wakers collected in a turn are called after the lock is released.
//! 5. Nobody holds the locks of two engines. An engine that has something for another leaves it
//!    as mail and rings that one's bell.

use std::{
    fmt, io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, MutexGuard, OnceLock, Weak, atomic::Ordering},
    task::Waker,
    thread,
    time::Duration,
};

use ibex_base::{
    fork,
    sync::{AtomicBool, AtomicU32, Mutex, lock},
};
use ibex_ring::parking::{Bell, BellLease, Drive, Leadership, Wakers};

use super::{
    Driver, Driving, NodeState, Runtime, gathering::Gatherings, keeper, own_thread::OwnThread,
    task::Flushing, yielding::Yielding,
};
use crate::{
    clock,
    connection::{Connection, Context, Surroundings},
    engine::{self, Engine, Mail, Ready},
    node::{Mark, SessionShared},
    session::EngineId,
};

/// An engine of a node, and whoever runs it.
///
/// It begins on a cache line of its own: engines run side by side.
#[repr(align(128))]
pub struct EventLoop {
    id: EngineId,
    me: Weak<Self>,
    runtime: Weak<Runtime>,
    pub(crate) node: Arc<NodeState>,
    pub(crate) engine: Leadership<Engine>,
    pub(crate) bell: BellLease,
    pub(crate) epoll: Arc<OwnedFd>,
    /// Changes while a thread that waits looks.
    pub(crate) presence: AtomicU32,
    /// Threads of others wanted to run where one waited that looked.
    pub(crate) shares_cores: AtomicBool,
    /// Threads that wait for several engines, this one included: its I/O thread leads meanwhile.
    pub(crate) spanned: AtomicU32,
    /// Tells waits to sleep at once while a yield takes long.
    pub(crate) yielding: Yielding,
    /// Wakes the I/O thread, once there is one.
    pub(crate) keeper: OnceLock<Waker>,
    /// News for the engine; while there is some, the leadership is marked.
    news: Mutex<News>,
    /// A guard rang since a turn last answered guards (`Driver::Caller`).
    guard_rang: AtomicBool,
    /// Gatherings that are told of the engine's sessions.
    pub(super) gatherings: Gatherings,
    /// A program sleeps on the epoll set itself (`watch`).
    watched: AtomicBool,
    /// The task that sends what others have left (`Driver::Tasks`).
    pub(crate) flushing: Flushing,
    io_thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// Work for that thread.
    pub(super) own_thread: OwnThread,
}

/// News that handles and other engines leave for an engine.
#[derive(Default)]
struct News {
    marks: Vec<Mark>,
    mail: Vec<Mail>,
}

impl EventLoop {
    /// A loop that nobody runs yet.
    pub(super) fn new(
        (id, mut engine, bell): (EngineId, Engine, BellLease),
        runtime: Weak<Runtime>,
        node: Arc<NodeState>,
    ) -> Arc<Self> {
        engine.join(runtime.clone());
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
            spanned: AtomicU32::new(0),
            yielding: Yielding::default(),
            keeper: OnceLock::new(),
            news: Mutex::default(),
            guard_rang: AtomicBool::new(false),
            gatherings: Gatherings::default(),
            watched: AtomicBool::new(false),
            flushing: Flushing::default(),
            io_thread: Mutex::new(None),
            own_thread: OwnThread::default(),
        })
    }

    /// Starts the I/O thread, if the driver has one.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        let driving = self.node.driving;
        if driving != Driving::Thread {
            let caller: Weak<dyn Drive + Send + Sync> =
                Arc::downgrade(&(self.clone() as Arc<dyn Drive + Send + Sync>));
            self.bell.set_caller(caller);
        }
        if driving.has_thread() {
            let weak = Arc::downgrade(self);
            let core = self.node.config.core_of(self.id);
            let name = match self.node.config.engines {
                1 => "ibex-io".to_owned(),
                _ => format!("ibex-io-{}", self.id),
            };
            let thread = thread::Builder::new()
                .name(name)
                .spawn(move || keeper::run(&weak, core))?;
            *lock(&self.io_thread) = Some(thread);
        }
        Ok(())
    }

    /// Waits for the end of the I/O thread, if there is one and it is not the one that calls.
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

    /// Returns itself, for a job on another thread.
    pub(super) fn arc(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Returns the runtime that it is part of, unless that is gone.
    pub(crate) fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.upgrade()
    }

    /// The engine's bell: rings wake whoever sleeps for it.
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
        if !is_watched && self.node.driver() == Driver::Caller {
            self.engine.lock().watch_all();
            // Whoever polled before asking has armed nothing, and has to poll once more.
            self.bell.wake();
        }
        self.as_fd()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.node.driver() == Driver::Caller && self.watched.load(Ordering::Relaxed)
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
        if self.node.driving == Driving::Tasks {
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
        match self.node.driving {
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
        match self.node.driving {
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

    /// Like `look_around`, for a thread that comes again at once. Nothing in a fork of the process.
    pub(crate) fn poll_in_passing(&self) {
        if !fork::is_child() {
            self.turn_in_passing(Self::poll);
        }
    }

    /// Runs a turn that asks epoll too, for a thread that has found something so often that
    /// others, which need not be hot, may long wait for one.
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

    /// Runs one turn under the lock, then the wakers without it.
    pub(crate) fn turn(&self, mut engine: MutexGuard<'_, Engine>, ready: &Ready) -> bool {
        #[cfg(record_writes)]
        let _turning = ibex_base::sync::recorded::turning(self);
        // Not before the lock is there: who does not get it runs no turn.
        self.flushing.begin();
        let mut context = Context::new(self);
        let mut progress = self.engine.is_marked() && self.take_news(&mut engine, &mut context);
        if self.guard_rang() {
            engine.answer_guards(&mut context);
        }
        progress |= engine.turn(ready, &mut context);
        let is_finished = engine.is_finished();
        drop(engine);
        self.wake(context);
        if is_finished {
            // Who closes may sleep for this, without a waker.
            match self.node.driving {
                Driving::Tasks => self.bell.wake(),
                _ => self.rouse_leader(),
            }
        }
        progress
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
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        if fork::is_child() {
            return None;
        }
        self.with_engine(|engine, context| engine.on_link(session, context, act))
    }

    // ---- Marks and bells -------------------------------------------------------------

    /// Leaves word for the engine; wakes it unless it can wait for another reason.
    pub(crate) fn mark_quietly(&self, mark: Mark, quiet: bool) {
        let mut news = lock(&self.news);
        // Twice would say no more, and without this the list had no bound.
        if !news.marks.contains(&mark) {
            news.marks.push(mark);
        }
        drop(news);
        self.engine.mark();
        if quiet {
            return;
        }
        match self.node.driving {
            Driving::Waiters => self.attend(),
            Driving::Callers | Driving::Tasks | Driving::Thread => self.rouse_leader(),
        }
    }

    /// Leaves mail for the engine and wakes whoever sleeps for it. The caller may have another
    /// engine's lock: no waker is called.
    pub(crate) fn post(&self, mail: Mail) {
        lock(&self.news).mail.push(mail);
        self.engine.mark();
        self.rouse_somebody();
    }

    /// Has the engine take in the marks that were left, and the mail. Returns whether there was
    /// anything.
    #[inline(never)]
    pub(super) fn take_news(&self, engine: &mut Engine, context: &mut Context<'_>) -> bool {
        if !self.engine.take_mark() {
            return false;
        }
        let mut marks = mem::take(&mut engine.marks);
        let mut news = lock(&self.news);
        marks.append(&mut news.marks);
        let mail = mem::take(&mut news.mail);
        drop(news);
        let any = engine.take_news(&mut marks, mail, context);
        engine.marks = marks;
        any
    }

    /// Returns whether a guard rang since this was last asked (`Driver::Caller`; else the bell says
    /// so through epoll).
    pub(crate) fn guard_rang(&self) -> bool {
        self.guard_rang.load(Ordering::Acquire) && self.guard_rang.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn rouse_leader(&self) {
        self.engine.rouse(|| self.ring_sleeper());
    }
}

impl Surroundings for EventLoop {
    fn node(&self) -> &NodeState {
        &self.node
    }

    fn bell(&self) -> &'static Bell {
        self.bell.bell()
    }

    fn may_drain(&self) -> bool {
        self.engine.may_drain()
    }

    fn drain_bell(&self) {
        if self.may_drain() {
            self.bell.drain();
        }
    }

    fn session_came(&self, session: &Arc<SessionShared>, wakers: &mut Wakers) {
        self.gatherings
            .for_each(|told| told.session_came(session.clone(), wakers));
    }
}

impl Drive for EventLoop {
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

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
