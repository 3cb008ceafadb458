//! An engine behind its lock, the one thread that sleeps for it, and those who must not be
//! slept over.
//!
//! Whoever holds the lock may turn the engine. One thread at a time, the *leader*, sleeps
//! where the engine's news comes in, without the lock; others *follow*, each asleep in a
//! place of its own. A thread that has news of another kind (a mark, a guard that settled,
//! data for a waiter) leaves it where the leader looks, and rings a bell that the leader
//! sleeps on, if it sleeps.
//!
//! ```text
//!   leader                            who has news
//!   lock; turn: nothing moves         leave it
//!   sleeping = 1                      fence
//!   fence                             sleeping? ring the bell
//!   look: marked? woken? work?
//!   unlock; sleep, if nothing
//!   sleeping = 0; lock; turn
//! ```
//!
//! Rules, and the race that each is for:
//!
//! 1. SLEEP: the leader says that it sleeps before it looks, behind a fence; who has news
//!    leaves it before it asks whether somebody sleeps, behind a fence. So either the look
//!    finds the news or the question finds the sleeper. Model: loom_marked_or_roused.
//! 2. Who wants a turn and does not get the lock leaves a mark: whoever has the lock may
//!    have looked at that news already, in this turn. Model: loom_driven_or_roused.
//! 3. The leader looks for its own wake-up too: another thread's turn may have fetched what
//!    it waits for after it looked and before it led. Model: loom_woken_whoever_leads.
//! 4. The bell, or whatever else the leader armed, is not drained while the leader sleeps,
//!    or a thread that turns the engine meanwhile takes a ring away from it. Model:
//!    loom_the_bell_is_the_sleepers.
//! 5. LEAVE: who follows registers before it looks whether somebody still leads; who leaves
//!    says so before it wakes those that registered. Model: loom_followers_are_woken.
//!
//! News costs one fence and one load for who has it. Nothing here is per message.

use std::sync::{PoisonError, TryLockError};
use std::task::Waker;

use crate::ring::WaitSlot;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence, is_weakened};

/// An engine, and who sleeps for it.
#[derive(Debug)]
pub struct Leadership<E> {
    engine: Mutex<E>,
    /// Somebody leads. Written by the leader, and by who wants to be.
    leading: AtomicBool,
    /// The leader sleeps, or is about to and will look once more. Set under the engine's
    /// lock.
    sleeping: AtomicBool,
    /// News was left since the last turn.
    marked: AtomicBool,
    /// Threads that wait while another leads.
    followers: WaitSlot,
}

impl<E> Leadership<E> {
    /// Nobody leads.
    pub fn new(engine: E) -> Self {
        Self {
            engine: Mutex::new(engine),
            leading: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            followers: WaitSlot::new(),
        }
    }

    /// The engine, when nobody else has it.
    pub fn lock(&self) -> MutexGuard<'_, E> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine, if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, E>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    // ---- News ------------------------------------------------------------------------

    /// Leaves word that a turn is wanted. [`rouse`](Self::rouse) if it cannot wait.
    pub fn mark(&self) {
        self.marked.store(true, Ordering::Release);
    }

    /// Whether word was left that no turn has taken.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Acquire)
    }

    /// Whether word was left since the last time; for who turns the engine now.
    pub fn take_mark(&self) -> bool {
        // The swap is only for when there is something.
        self.marked.load(Ordering::Acquire) && self.marked.swap(false, Ordering::AcqRel)
    }

    /// Rings for the leader if it sleeps. Leave the news before (rule 1).
    pub fn rouse(&self, ring: impl FnOnce()) {
        // SLEEP, pairs with `sleep`.
        if !is_weakened("rouse_fence_missing") {
            fence(Ordering::SeqCst);
        }
        if self.sleeping.load(Ordering::Relaxed) {
            ring();
        }
    }

    /// Turns the engine, or leaves that to whoever has it now; never waits.
    pub fn drive(&self, turn: impl FnOnce(MutexGuard<'_, E>), ring: impl FnOnce()) {
        match self.try_lock() {
            Some(engine) => turn(engine),
            None if is_weakened("drive_mark_missing") => {}
            // Rule 2.
            None => self.mark(),
        }
        self.rouse(ring);
    }

    /// Whether the bell may be drained; for who holds the engine (rule 4).
    ///
    /// It says no for a moment too long, when the leader has woken up and not taken the
    /// lock yet; it never says yes while the leader sleeps.
    pub fn may_drain(&self, _engine: &E) -> bool {
        is_weakened("drained_asleep") || !self.sleeping.load(Ordering::Relaxed)
    }

    // ---- Leading and following -------------------------------------------------------

    /// Leads from now on, unless somebody does.
    pub fn try_lead(&self) -> Option<Lead<'_, E>> {
        if self.leading.swap(true, Ordering::Acquire) {
            None
        } else {
            Some(Lead { of: self })
        }
    }

    /// Sleeps until whoever leads now leaves, or `waker` is used for another reason.
    /// `park` sleeps until then.
    pub fn follow(&self, waker: &Waker, park: impl FnOnce()) {
        self.followers.register(waker);
        // LEAVE, pairs with `Lead::drop`; the barrier is in `register`.
        if is_weakened("followed_blindly") || self.leading.load(Ordering::Relaxed) {
            park();
        }
        self.followers.deregister(waker);
    }

    /// Goes to sleep for the engine, whose last turn moved nothing; for the leader alone.
    ///
    /// `is_woken` says whether the leader was woken already. `look` looks at everything
    /// else behind the fence, is told whether it has to stay awake for what was found so
    /// far, and gives what `sleep` needs, or `None` if there is something to do. `sleep`
    /// returns when the bell or anything else rings.
    pub fn sleep<T, R>(
        &self,
        mut engine: MutexGuard<'_, E>,
        is_woken: impl FnOnce() -> bool,
        look: impl FnOnce(&mut E, bool) -> Option<T>,
        sleep: impl FnOnce(T) -> R,
    ) -> Option<R> {
        let early = is_weakened("looked_early") && self.marked.load(Ordering::Relaxed);
        self.sleeping.store(true, Ordering::Relaxed);
        // SLEEP, pairs with `rouse`.
        if !is_weakened("sleep_fence_missing") {
            fence(Ordering::SeqCst);
        }
        let marked = match is_weakened("looked_early") {
            true => early,
            false => self.marked.load(Ordering::Relaxed),
        };
        // Rule 3.
        let is_woken = !is_weakened("woken_unseen") && is_woken();
        let wanted = look(&mut engine, marked || is_woken);
        drop(engine);
        let slept = wanted.map(sleep);
        self.sleeping.store(false, Ordering::Relaxed);
        slept
    }
}

/// The lead, until dropped.
#[derive(Debug)]
pub struct Lead<'a, E> {
    of: &'a Leadership<E>,
}

impl<E> Drop for Lead<'_, E> {
    fn drop(&mut self) {
        // LEAVE, pairs with `follow`; the barrier is in `wake_all`.
        self.of.leading.store(false, Ordering::Release);
        if !is_weakened("left_silently") {
            self.of.followers.wake_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    struct Nobody;

    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn one_leads_and_only_then_others_follow() {
        let leadership = Leadership::new(());
        let waker = Arc::new(Nobody).into();
        let parked = Cell::new(0);
        let follow = || leadership.follow(&waker, || parked.set(parked.get() + 1));
        follow();
        let lead = leadership.try_lead();
        assert!(lead.is_some() && leadership.try_lead().is_none());
        follow();
        drop(lead);
        follow();
        assert_eq!(parked.get(), 1);
        assert!(leadership.try_lead().is_some());
    }

    #[test]
    fn who_sleeps_is_rung_for_and_keeps_its_bell() {
        let leadership = Leadership::new(0);
        let rung = Cell::new(0);
        let ring = || rung.set(rung.get() + 1);
        leadership.rouse(ring);
        let slept = leadership.sleep(
            leadership.lock(),
            || false,
            |engine, stay| {
                assert!(!leadership.may_drain(engine));
                (!stay).then_some(7)
            },
            |seven| {
                leadership.rouse(ring);
                leadership.drive(|mut engine| *engine += 1, ring);
                seven
            },
        );
        assert_eq!((slept, rung.get(), *leadership.lock()), (Some(7), 2, 1));
        assert!(leadership.may_drain(&0));
    }

    #[test]
    fn a_mark_or_a_wake_up_keeps_the_leader_awake() {
        let leadership = Leadership::new(());
        let sleeps = |is_woken: bool| {
            let look = |_: &mut (), stay: bool| (!stay).then_some(());
            let slept = leadership.sleep(leadership.lock(), || is_woken, look, |()| ());
            slept.is_some()
        };
        assert!(sleeps(false) && !sleeps(true));
        let engine = leadership.lock();
        leadership.drive(|_| panic!("somebody has the engine"), || ());
        drop(engine);
        assert!(!sleeps(false));
        assert!(leadership.take_mark() && !leadership.take_mark());
        assert!(sleeps(false));
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::task::Wake;

    use loom::sync::Condvar;

    use super::*;
    use crate::sync::{Arc, AtomicU32, thread};

    /// A node with one waiter and one guard.
    struct Node {
        leadership: Leadership<Engine>,
        /// A guard settled: found by turns alone.
        settled: AtomicBool,
        /// What the waiter waits for.
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

        /// What a turn does that matters here. Returns whether anything moved.
        fn turn(&self, engine: &mut Engine) -> bool {
            let mut progress = self.leadership.take_mark();
            if !engine.answered && self.settled.load(Ordering::Acquire) {
                engine.answered = true;
                progress = true;
            }
            progress
        }

        /// Leads until the guard is answered or the waiter woken, unless it is asleep for
        /// ever before.
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
                    || woken.is_woken(),
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
            };
            self.leadership.drive(turn, || self.bell.ring());
        }

        /// Another thread's turn, that fetches what the waiter waits for.
        fn fetch(&self) {
            let engine = self.leadership.lock();
            self.arrived.store(true, Ordering::Release);
            let mut wakers = crate::ring::Wakers::new();
            self.waiters.take(&mut wakers);
            drop(engine);
            let any = !wakers.is_empty();
            wakers.wake();
            if any {
                self.leadership.rouse(|| self.bell.ring());
            }
        }
    }

    /// An eventfd, and when nobody is left who could ring it.
    struct ModelBell {
        state: Mutex<(bool, u32)>,
        changed: Condvar,
    }

    impl ModelBell {
        fn new(ringers: u32) -> Self {
            Self {
                state: Mutex::new((false, ringers)),
                changed: Condvar::new(),
            }
        }

        fn ring(&self) {
            self.state.lock().unwrap().0 = true;
            self.changed.notify_one();
        }

        fn drain(&self) -> bool {
            std::mem::take(&mut self.state.lock().unwrap().0)
        }

        /// A thread that might have rung does not any more.
        fn leave(&self) {
            self.state.lock().unwrap().1 -= 1;
            self.changed.notify_one();
        }

        fn sleep(&self) {
            let mut state = self.state.lock().unwrap();
            while !state.0 && state.1 > 0 {
                state = self.changed.wait(state).unwrap();
            }
            let is_rung = state.0;
            drop(state);
            assert!(is_rung, "asleep for ever");
        }
    }

    /// A thread's word that its waker sets.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Woken {
        fn is_woken(&self) -> bool {
            self.0.load(Ordering::Acquire) != 0
        }
    }

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.swap(1, Ordering::Release);
        }
    }

    /// A parked thread's waker.
    struct Rings(Arc<ModelBell>);

    impl Wake for Rings {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.ring();
        }
    }

    fn in_thread(node: &Arc<Node>, act: fn(&Node)) -> thread::JoinHandle<()> {
        let node = node.clone();
        thread::spawn(move || {
            act(&node);
            node.bell.leave();
        })
    }

    /// Twins: rouse_fence_missing, sleep_fence_missing, looked_early.
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

    /// Twins: drive_mark_missing, rouse_fence_missing, sleep_fence_missing, looked_early.
    #[test]
    fn loom_driven_or_roused() {
        loom::model(|| {
            let node = Node::new(1);
            let guard = in_thread(&node, Node::settle);
            node.lead(&Woken::default());
            guard.join().unwrap();
        });
    }

    /// Twins: woken_unseen, rouse_fence_missing, sleep_fence_missing.
    #[test]
    fn loom_woken_whoever_leads() {
        loom::model(|| {
            let node = Node::new(1);
            let other = in_thread(&node, Node::fetch);
            let woken = std::sync::Arc::new(Woken::default());
            node.waiters.register(&woken.clone().into());
            if !node.arrived.load(Ordering::Acquire) {
                node.lead(&woken);
            }
            other.join().unwrap();
        });
    }

    /// Three threads, so bounded: all orders with up to three preemptions.
    ///
    /// Twins: drained_asleep.
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
            // A turn that asks whether the bell rings, when it has looked at all else.
            let turning = in_thread(&node, |node| {
                let Some(mut engine) = node.leadership.try_lock() else {
                    return;
                };
                node.turn(&mut engine);
                if node.leadership.may_drain(&engine) {
                    node.bell.drain();
                }
            });
            node.lead(&Woken::default());
            marking.join().unwrap();
            turning.join().unwrap();
        });
    }

    /// Twins: left_silently, followed_blindly, light_missing, heavy_missing.
    #[test]
    fn loom_followers_are_woken() {
        loom::model(|| {
            let leadership = Arc::new(Leadership::new(()));
            let lead = leadership.try_lead().unwrap();
            let bell = Arc::new(ModelBell::new(1));
            let follower = {
                let (leadership, bell) = (leadership.clone(), bell.clone());
                thread::spawn(move || {
                    let waker = std::sync::Arc::new(Rings(bell.clone())).into();
                    leadership.follow(&waker, || bell.sleep());
                })
            };
            drop(lead);
            bell.leave();
            follower.join().unwrap();
        });
    }
}
