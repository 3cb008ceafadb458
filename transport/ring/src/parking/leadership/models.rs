//! Models of leadership: which thread sleeps over which changes, in every order of events.

use std::task::Wake;

use ibex_base::sync::{Arc, AtomicU32, thread};
use loom::sync::Condvar;

use super::*;

/// A node with one waiter and one guard.
struct Node {
    leadership: Leadership<Engine>,
    /// A guard settled; only turns find this.
    settled: AtomicBool,
    /// The changes that the waiter waits for.
    arrived: AtomicBool,
    waiters: WaitSlot,
    bell: ModelBell,
}

#[derive(Default)]
struct Engine {
    answered: bool,
}

impl Node {
    fn new(others: u32) -> Arc<Self> {
        Arc::new(Self {
            leadership: Leadership::new(Engine::default()),
            settled: AtomicBool::new(false),
            arrived: AtomicBool::new(false),
            waiters: WaitSlot::new(),
            bell: ModelBell::new(others),
        })
    }

    /// Does the part of a turn that matters here. Returns whether anything moved.
    fn turn(&self, engine: &mut Engine) -> bool {
        let mut progress = self.leadership.take_mark();
        if !engine.answered && self.settled.load(Ordering::Acquire) {
            engine.answered = true;
            progress = true;
        }
        progress
    }

    /// Leads until the guard is answered or the waiter woken, unless it falls asleep for ever
    /// before that.
    fn lead(&self, woken: &Woken) {
        loop {
            let mut engine = self.leadership.lock();
            if engine.answered || woken.is_woken() {
                return;
            }
            if self.turn(&mut engine) {
                continue;
            }
            self.leadership.sleep(
                engine,
                || woken.sleeps_at(&self.bell),
                |_, stay| (!stay).then_some(()),
                |()| self.bell.sleep(),
            );
            let mut engine = self.leadership.lock();
            self.bell.drain();
            self.turn(&mut engine);
        }
    }

    /// A guard settles, under `Driver::Caller`.
    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        let turn = |mut engine: MutexGuard<'_, Engine>| {
            self.turn(&mut engine);
            drop(engine);
            self.leadership.rouse(|| self.bell.ring());
        };
        self.leadership.drive(turn, false, || self.bell.ring());
    }

    /// A guard settles while a program sleeps on the bell between its turns.
    fn settle_watched(&self) {
        self.settled.store(true, Ordering::Release);
        let turn = |mut engine: MutexGuard<'_, Engine>| {
            let moved = self.turn(&mut engine);
            drop(engine);
            if moved {
                self.bell.ring();
            }
        };
        self.leadership.drive(turn, true, || self.bell.ring());
    }

    /// A program that runs turns until the guard is answered, and sleeps on the bell when a
    /// turn has moved nothing.
    fn watch(&self) {
        loop {
            let mut engine = self.leadership.lock();
            self.bell.drain();
            let moved = self.turn(&mut engine);
            if engine.answered {
                return;
            }
            drop(engine);
            if !moved {
                self.bell.sleep();
            }
        }
    }

    /// A task that drives the engine until the guard is answered, and waits for the bell while it
    /// is parked.
    fn drive_as_task(&self) {
        loop {
            self.leadership.unpark();
            let mut engine = self.leadership.lock();
            let moved = self.turn(&mut engine);
            if engine.answered {
                return;
            }
            if !moved && self.leadership.park(engine, |_, is_marked| !is_marked) {
                self.bell.sleep();
            }
        }
    }

    /// Runs another thread's turn, which fetches the changes that the waiter waits for.
    fn fetch(&self) {
        let engine = self.leadership.lock();
        self.arrived.store(true, Ordering::Release);
        let mut wakers = crate::parking::Wakers::new();
        self.waiters.take(&mut wakers);
        drop(engine);
        wakers.wake();
    }
}

/// An eventfd, and the moment at which no thread is left to ring it.
pub(super) struct ModelBell {
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl ModelBell {
    pub(super) fn new(ringers: u32) -> Self {
        Self {
            state: Mutex::new((false, ringers)),
            changed: Condvar::new(),
        }
    }

    pub(super) fn ring(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_one();
    }

    pub(super) fn drain(&self) -> bool {
        std::mem::take(&mut self.state.lock().unwrap().0)
    }

    /// Notes that a thread that might have rung will not ring any more.
    pub(super) fn leave(&self) {
        self.state.lock().unwrap().1 -= 1;
        self.changed.notify_one();
    }

    pub(super) fn sleep(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.0 && state.1 > 0 {
            state = self.changed.wait(state).unwrap();
        }
        let is_rung = state.0;
        drop(state);
        assert!(is_rung, "asleep for ever");
    }
}

/// A thread's word that its waker sets, as in `Parker`.
#[derive(Default)]
struct Woken {
    word: AtomicU32,
    node: Option<Arc<Node>>,
}

const AWAKE: u32 = 0;
const ELSEWHERE: u32 = 1;
const WOKEN: u32 = 2;

impl Woken {
    fn is_woken(&self) -> bool {
        self.word.load(Ordering::Acquire) == WOKEN
    }

    /// Makes the waker ring from now on. Returns whether it was used already.
    fn sleeps_at(&self, _bell: &ModelBell) -> bool {
        let word = &self.word;
        word.compare_exchange(AWAKE, ELSEWHERE, Ordering::Relaxed, Ordering::Acquire)
            .is_err_and(|word| word == WOKEN)
    }
}

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        if self.word.swap(WOKEN, Ordering::AcqRel) == ELSEWHERE
            && let Some(node) = &self.node
        {
            node.bell.ring();
        }
    }
}

fn in_thread(node: &Arc<Node>, act: fn(&Node)) -> thread::JoinHandle<()> {
    let node = node.clone();
    thread::spawn(move || {
        act(&node);
        node.bell.leave();
    })
}

/// Mutants: rouse_fence_missing, sleep_fence_missing, polled_early.
#[test]
fn loom_marked_or_roused() {
    loom::model(|| {
        let node = Node::new(1);
        let other = in_thread(&node, |node| {
            node.settled.store(true, Ordering::Release);
            node.leadership.mark();
            node.leadership.rouse(|| node.bell.ring());
        });
        node.lead(&Woken::default());
        other.join().unwrap();
    });
}

/// Mutants: drive_mark_missing, rouse_fence_missing, sleep_fence_missing, polled_early.
#[test]
fn loom_driven_or_roused() {
    loom::model(|| {
        let node = Node::new(1);
        let guard = in_thread(&node, Node::settle);
        node.lead(&Woken::default());
        guard.join().unwrap();
    });
}

/// Mutants: rouse_fence_missing, parked_early.
#[test]
fn loom_marked_or_unparked() {
    loom::model(|| {
        let node = Node::new(1);
        let other = in_thread(&node, |node| {
            node.settled.store(true, Ordering::Release);
            node.leadership.mark();
            node.leadership.rouse(|| node.bell.ring());
        });
        node.drive_as_task();
        other.join().unwrap();
    });
}

/// Mutant: watcher_unrung.
#[test]
fn loom_a_watcher_is_rung_for() {
    loom::model(|| {
        let node = Node::new(1);
        let guard = in_thread(&node, Node::settle_watched);
        node.watch();
        guard.join().unwrap();
    });
}

/// Mutants: woken_unseen, waker_rings_nothing.
#[test]
fn loom_woken_whoever_leads() {
    loom::model(|| {
        let node = Node::new(1);
        let other = in_thread(&node, Node::fetch);
        let woken = std::sync::Arc::new(Woken {
            node: Some(node.clone()),
            ..Woken::default()
        });
        let waker = woken.clone().into();
        let ticket = node.waiters.register(&waker);
        if !node.arrived.load(Ordering::Acquire) {
            node.lead(&woken);
        }
        node.waiters.deregister(ticket);
        other.join().unwrap();
    });
}

/// The model has three threads and is therefore bounded: all orders with up to three preemptions.
///
/// Mutant: drained_asleep.
#[test]
fn loom_the_bell_is_the_sleepers() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let node = Node::new(2);
        let marking = in_thread(&node, |node| {
            node.settled.store(true, Ordering::Release);
            node.leadership.mark();
            node.leadership.rouse(|| node.bell.ring());
        });
        // A turn that has looked at everything else, and then asks whether the bell rings.
        let turning = in_thread(&node, |node| {
            let Some(mut engine) = node.leadership.try_lock() else {
                return;
            };
            node.turn(&mut engine);
            if node.leadership.may_drain() {
                node.bell.drain();
            }
        });
        node.lead(&Woken::default());
        marking.join().unwrap();
        turning.join().unwrap();
    });
}

/// Two threads leave marks at once. The turn that takes both sees what both are for.
///
/// Mutant: marked_by_a_store.
#[test]
fn loom_marks_of_two_threads() {
    loom::model(|| {
        let leadership = Arc::new(Leadership::new(()));
        let changes = Arc::new(AtomicU32::new(0));
        let marks = {
            let (leadership, changes) = (leadership.clone(), changes.clone());
            thread::spawn(move || {
                changes.store(1, Ordering::Relaxed);
                leadership.mark();
            })
        };
        leadership.mark();
        assert!(leadership.take_mark());
        let mut seen = changes.load(Ordering::Relaxed);
        marks.join().unwrap();
        if leadership.take_mark() {
            seen = changes.load(Ordering::Relaxed);
        }
        assert_eq!(seen, 1);
    });
}
