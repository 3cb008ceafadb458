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
//! There is one *seat*. Threads that wait for the engine's sake take it when it is vacant.
//! A thread that is there for nothing else, the *keeper*, takes it when no other does, and
//! gives it up to who claims it; while others lead for long it stands by, asleep like a
//! follower, but is woken only when nobody follows.
//!
//! Rules, and the race that each is for:
//!
//! 1. SLEEP: the leader says that it sleeps before it looks, behind a fence; who has news
//!    leaves it before it asks whether somebody sleeps, behind a fence. So either the look
//!    finds the news or the question finds the sleeper. Model: loom_marked_or_roused.
//! 2. Who wants a turn and does not get the lock leaves a mark: whoever has the lock may
//!    have looked at that news already, in this turn. Model: loom_driven_or_roused.
//! 3. The leader looks for its own wake-up too: another thread's turn may have fetched what
//!    it waits for after it looked and before it led. From that look on its waker rings the
//!    bell. Model: loom_woken_whoever_leads.
//! 4. The bell, or whatever else the leader armed, is not drained while the leader sleeps,
//!    or a thread that turns the engine meanwhile takes a ring away from it. Model:
//!    loom_the_bell_is_the_sleepers.
//! 5. LEAVE: who follows, or stands by, registers before it looks whether somebody still
//!    leads; who leaves says so before it wakes one of those that registered. Model:
//!    loom_the_seat_is_passed_on, loom_the_keeper_stands_by.
//! 6. One follower is woken for a vacant seat, so whoever followed and goes away without
//!    leading passes it on: it may have been that one. Model: loom_a_follower_may_give_up.
//! 7. A claim is made before the leader is rung for, and the keeper looks for claims where
//!    it looks for news. Model: loom_the_seat_is_claimed.
//!
//! News costs one fence and one load for who has it. Nothing here is per message.

use std::sync::{PoisonError, TryLockError};
use std::task::Waker;

use crate::ring::WaitSlot;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, fence, is_weakened};

/// An engine, and who sleeps for it.
#[derive(Debug)]
pub struct Leadership<E> {
    engine: Mutex<E>,
    /// Who leads. Taken by who wants to lead, left by who does.
    seat: AtomicU32,
    /// Somebody wants the keeper's seat. It may say so for too long.
    claimed: AtomicBool,
    /// How often a thread that waits took the seat.
    leads: AtomicU32,
    /// The leader sleeps, or is about to and will look once more. Set under the engine's
    /// lock.
    sleeping: AtomicBool,
    /// News was left since the last turn.
    marked: AtomicBool,
    /// Threads that wait while another leads.
    followers: WaitSlot,
    /// The keeper, while it stands by.
    standby: WaitSlot,
}

/// Nobody leads.
const VACANT: u32 = 0;
/// A thread that waits leads.
const TAKEN: u32 = 1;
/// The keeper leads.
const KEPT: u32 = 2;

impl<E> Leadership<E> {
    /// Nobody leads.
    pub fn new(engine: E) -> Self {
        Self {
            engine: Mutex::new(engine),
            seat: AtomicU32::new(VACANT),
            claimed: AtomicBool::new(false),
            leads: AtomicU32::new(0),
            sleeping: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            followers: WaitSlot::with_capacity(4),
            standby: WaitSlot::with_capacity(1),
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

    /// Rings for the leader if it sleeps. Leave the news before (rule 1). Returns whether
    /// it did.
    pub fn rouse(&self, ring: impl FnOnce()) -> bool {
        // SLEEP, pairs with `sleep`.
        if !is_weakened("rouse_fence_missing") {
            fence(Ordering::SeqCst);
        }
        let is_asleep = self.sleeping.load(Ordering::Relaxed);
        if is_asleep {
            ring();
        }
        is_asleep
    }

    /// Turns the engine, or leaves that to whoever has it now; never waits.
    pub fn drive(&self, turn: impl FnOnce(MutexGuard<'_, E>), ring: impl FnOnce()) {
        match self.try_lock() {
            Some(engine) => return turn(engine),
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

    /// Whether a thread sleeps for the engine, or is about to: what it armed has to stay so.
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    // ---- Leading and following -------------------------------------------------------

    /// Leads from now on, unless somebody does.
    pub fn try_lead(&self) -> Option<Lead<'_, E>> {
        let lead = self.try_take(TAKEN)?;
        // Only the keeper reads it, to see that somebody was there.
        let leads = self.leads.load(Ordering::Relaxed).wrapping_add(1);
        self.leads.store(leads, Ordering::Relaxed);
        Some(lead)
    }

    /// The same for the keeper.
    pub fn try_keep(&self) -> Option<Lead<'_, E>> {
        self.try_take(KEPT)
    }

    fn try_take(&self, who: u32) -> Option<Lead<'_, E>> {
        self.seat
            .compare_exchange(VACANT, who, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Lead { of: self })
    }

    /// Whether a thread that waits leads, and how often one took the seat so far.
    pub fn leads(&self) -> (bool, u32) {
        let is_led = self.seat.load(Ordering::Relaxed) == TAKEN;
        (is_led, self.leads.load(Ordering::Relaxed))
    }

    /// Whether nobody leads.
    pub fn is_vacant(&self) -> bool {
        self.seat.load(Ordering::Relaxed) == VACANT
    }

    /// Whether somebody wants the seat that the keeper has.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Wants the seat if the keeper has it, who leaves it soon.
    #[inline]
    pub fn claim(&self, ring: impl FnOnce()) {
        if self.seat.load(Ordering::Relaxed) == KEPT {
            self.claim_kept(ring);
        }
    }

    #[cold]
    fn claim_kept(&self, ring: impl FnOnce()) {
        // Again and again by who spins would be a fence each time.
        if !self.claimed.swap(true, Ordering::Relaxed) {
            self.rouse(ring);
        }
    }

    /// Sleeps until the seat is vacant, or `waker` is used for another reason; `park` sleeps
    /// until then. Whoever followed leads, or [passes the seat on](Self::pass_on).
    pub fn follow(&self, waker: &Waker, ring: impl FnOnce(), park: impl FnOnce()) {
        self.followers.register(waker);
        self.claim(ring);
        // LEAVE, pairs with `Lead::drop`; the barrier is in `register`.
        if is_weakened("followed_blindly") || self.seat.load(Ordering::Relaxed) != VACANT {
            park();
        }
        self.followers.deregister(waker);
    }

    /// Sleeps like a follower until nobody else leads and nobody follows, or `waker` is used
    /// for another reason; for the keeper.
    pub fn stand_by(&self, waker: &Waker, park: impl FnOnce()) {
        self.standby.register(waker);
        // LEAVE, as in `follow`.
        if is_weakened("stood_by_blindly") || self.seat.load(Ordering::Relaxed) != VACANT {
            park();
        }
        self.standby.deregister(waker);
    }

    /// Wakes who may want the seat, if nobody has it; for who followed and does not lead.
    pub fn pass_on(&self) {
        if !is_weakened("not_passed_on") && self.seat.load(Ordering::Relaxed) == VACANT {
            self.wake_next();
        }
    }

    fn wake_next(&self) {
        if !self.followers.wake_one() {
            self.standby.wake_all();
        }
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
        // Only the keeper's seat is ever claimed (rule 7).
        let is_claimed = !is_weakened("claim_unseen")
            && self.is_claimed()
            && self.seat.load(Ordering::Relaxed) == KEPT;
        // Rule 3.
        let is_woken = !is_weakened("woken_unseen") && is_woken();
        let wanted = look(&mut engine, marked || is_claimed || is_woken);
        drop(engine);
        let slept = wanted.map(sleep);
        self.sleeping.store(false, Ordering::Relaxed);
        slept
    }
}

/// The lead, until dropped, be it by a panic.
#[derive(Debug)]
pub struct Lead<'a, E> {
    of: &'a Leadership<E>,
}

impl<E> Drop for Lead<'_, E> {
    fn drop(&mut self) {
        if self.of.seat.load(Ordering::Relaxed) == KEPT {
            // Before the seat is vacant: a claim that comes later is one too many, and the
            // keeper leaves at once when it next leads. One that was taken back after would
            // be lost.
            self.of.claimed.store(false, Ordering::Relaxed);
        }
        // LEAVE, pairs with `follow` and `stand_by`; the barrier is in `wake_one`.
        self.of.seat.store(VACANT, Ordering::Release);
        if !is_weakened("left_silently") {
            self.of.wake_next();
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

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn nobody() -> Waker {
        Arc::new(Nobody).into()
    }

    #[test]
    fn one_leads_and_only_then_others_follow() {
        let leadership = Leadership::new(());
        let (waker, parked) = (nobody(), Cell::new(0));
        let follow = || leadership.follow(&waker, || (), || parked.set(parked.get() + 1));
        follow();
        let lead = leadership.try_lead();
        assert!(lead.is_some() && leadership.try_lead().is_none());
        assert_eq!(leadership.leads(), (true, 1));
        follow();
        drop(lead);
        follow();
        assert_eq!(parked.get(), 1);
        assert!(leadership.try_lead().is_some());
        assert_eq!(leadership.leads(), (false, 2));
    }

    #[test]
    fn the_keeper_is_asked_once_for_its_seat() {
        let leadership = Leadership::new(());
        let rung = Cell::new(0);
        let ring = || rung.set(rung.get() + 1);
        let kept = leadership.try_keep();
        assert!(leadership.try_lead().is_none() && !leadership.is_claimed());
        let look = |_: &mut (), stay: bool| (!stay).then_some(());
        let claim_twice = |()| {
            leadership.claim(ring);
            leadership.claim(ring);
        };
        leadership.sleep(leadership.lock(), || false, look, claim_twice);
        assert!(leadership.is_claimed() && rung.get() == 1);
        // It would not sleep over it either.
        let slept = leadership.sleep(leadership.lock(), || false, look, |()| ());
        assert_eq!(slept, None);
        drop(kept);
        assert!(!leadership.is_claimed() && leadership.try_lead().is_some());
        leadership.claim(|| panic!("nobody keeps it"));
    }

    #[test]
    fn one_is_woken_for_the_seat_and_the_keeper_last() {
        let leadership = Leadership::new(());
        let woken = [(); 3].map(|()| Arc::new(Count::default()));
        let wakers = woken.each_ref().map(|count| Waker::from(count.clone()));
        let counts = || {
            woken
                .each_ref()
                .map(|count| count.0.load(Ordering::Relaxed))
        };
        let lead = leadership.try_lead();
        leadership.standby.register(&wakers[2]);
        leadership.followers.register(&wakers[0]);
        leadership.followers.register(&wakers[1]);
        leadership.pass_on();
        assert_eq!(counts(), [0, 0, 0]);
        drop(lead);
        assert_eq!(counts(), [1, 0, 0]);
        leadership.pass_on();
        assert_eq!(counts(), [1, 1, 0]);
        leadership.pass_on();
        assert_eq!(counts(), [1, 1, 1]);
    }

    #[test]
    fn who_sleeps_is_rung_for_and_keeps_its_bell() {
        let leadership = Leadership::new(0);
        let rung = Cell::new(0);
        let ring = || rung.set(rung.get() + 1);
        assert!(!leadership.rouse(ring));
        let slept = leadership.sleep(
            leadership.lock(),
            || false,
            |engine, stay| {
                assert!(!leadership.may_drain(engine));
                (!stay).then_some(7)
            },
            |seven| {
                assert!(leadership.has_sleeper() && leadership.rouse(ring));
                leadership.drive(|mut engine| *engine += 1, ring);
                let engine = leadership.lock();
                leadership.drive(|_| panic!("somebody has the engine"), ring);
                drop(engine);
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
            self.leadership.drive(turn, || self.bell.ring());
        }

        /// Another thread's turn, that fetches what the waiter waits for.
        fn fetch(&self) {
            let engine = self.leadership.lock();
            self.arrived.store(true, Ordering::Release);
            let mut wakers = crate::ring::Wakers::new();
            self.waiters.take(&mut wakers);
            drop(engine);
            wakers.wake();
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

    /// A thread's word that its waker sets, as `ring::Parker` has it.
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

        /// From now on the waker rings. Returns whether it was used already.
        fn sleeps_at(&self, _bell: &ModelBell) -> bool {
            let to = match is_weakened("waker_rings_nothing") {
                true => AWAKE,
                false => ELSEWHERE,
            };
            let word = &self.word;
            word.compare_exchange(AWAKE, to, Ordering::Relaxed, Ordering::Acquire)
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

    /// Twins: woken_unseen, waker_rings_nothing.
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
            node.waiters.register(&waker);
            if !node.arrived.load(Ordering::Acquire) {
                node.lead(&woken);
            }
            node.waiters.deregister(&waker);
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

    /// A thread that follows, and its own place to sleep.
    fn follow(leadership: &Leadership<()>, bell: &Arc<ModelBell>) {
        let waker = std::sync::Arc::new(Rings(bell.clone())).into();
        leadership.follow(&waker, || (), || bell.sleep());
    }

    /// Leads once, whenever the seat is vacant.
    fn lead_once(leadership: &Leadership<()>, bell: &Arc<ModelBell>) {
        while leadership.try_lead().is_none() {
            follow(leadership, bell);
            bell.drain();
        }
    }

    fn bounded() -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model
    }

    /// Twins: left_silently, followed_blindly, light_missing, heavy_missing.
    #[test]
    fn loom_the_seat_is_passed_on() {
        bounded().check(|| {
            let leadership = Arc::new(Leadership::new(()));
            let lead = leadership.try_lead().unwrap();
            let bells = [Arc::new(ModelBell::new(2)), Arc::new(ModelBell::new(2))];
            let followers = [0, 1].map(|me: usize| {
                let (leadership, bells) = (leadership.clone(), bells.clone());
                thread::spawn(move || {
                    lead_once(&leadership, &bells[me]);
                    bells[1 - me].leave();
                })
            });
            drop(lead);
            bells.iter().for_each(|bell| bell.leave());
            followers.map(|follower| follower.join().unwrap());
        });
    }

    /// A leader that panics, in a waker or wherever, leaves like any other.
    ///
    /// Twins: left_silently.
    #[test]
    fn loom_a_leader_may_panic() {
        loom::model(|| {
            let leadership = Arc::new(Leadership::new(()));
            let bell = Arc::new(ModelBell::new(1));
            let lead = leadership.try_lead().unwrap();
            let follower = {
                let (leadership, bell) = (leadership.clone(), bell.clone());
                thread::spawn(move || lead_once(&leadership, &bell))
            };
            let panics = || {
                let _lead = lead;
                std::panic::resume_unwind(Box::new("in a waker"));
            };
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
            assert!(panicked.is_err());
            bell.leave();
            follower.join().unwrap();
        });
    }

    /// One whose time is up was woken for the seat, and another needs it.
    ///
    /// Twins: not_passed_on.
    #[test]
    fn loom_a_follower_may_give_up() {
        bounded().check(|| {
            let leadership = Arc::new(Leadership::new(()));
            let lead = leadership.try_lead().unwrap();
            let stays = Arc::new(ModelBell::new(2));
            let gives_up = {
                let (leadership, stays) = (leadership.clone(), stays.clone());
                thread::spawn(move || {
                    let waker = std::sync::Arc::new(Nothing).into();
                    leadership.follow(&waker, || (), thread::yield_now);
                    leadership.pass_on();
                    stays.leave();
                })
            };
            let follower = {
                let (leadership, stays) = (leadership.clone(), stays.clone());
                thread::spawn(move || lead_once(&leadership, &stays))
            };
            drop(lead);
            stays.leave();
            gives_up.join().unwrap();
            follower.join().unwrap();
        });
    }

    /// The waker of one who sleeps by time alone.
    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: std::sync::Arc<Self>) {}
    }

    /// Twins: left_silently, stood_by_blindly, light_missing, heavy_missing.
    #[test]
    fn loom_the_keeper_stands_by() {
        loom::model(|| {
            let leadership = Arc::new(Leadership::new(()));
            let lead = leadership.try_lead().unwrap();
            let bell = Arc::new(ModelBell::new(1));
            let keeper = {
                let (leadership, bell) = (leadership.clone(), bell.clone());
                thread::spawn(move || {
                    let waker = std::sync::Arc::new(Rings(bell.clone())).into();
                    while leadership.try_keep().is_none() {
                        leadership.stand_by(&waker, || bell.sleep());
                        bell.drain();
                    }
                })
            };
            drop(lead);
            bell.leave();
            keeper.join().unwrap();
        });
    }

    /// Twins: claim_unseen, rouse_fence_missing, sleep_fence_missing.
    #[test]
    fn loom_the_seat_is_claimed() {
        loom::model(|| {
            let leadership = Arc::new(Leadership::new(()));
            let (keepers, mine) = (Arc::new(ModelBell::new(1)), Arc::new(ModelBell::new(1)));
            let kept = leadership.try_keep().unwrap();
            let claims = {
                let (leadership, keepers, mine) =
                    (leadership.clone(), keepers.clone(), mine.clone());
                thread::spawn(move || {
                    let waker = std::sync::Arc::new(Rings(mine.clone())).into();
                    let park = || {
                        // Asleep it rings for nobody.
                        keepers.leave();
                        mine.sleep();
                    };
                    leadership.follow(&waker, || keepers.ring(), park);
                    assert!(leadership.try_lead().is_some());
                })
            };
            while !leadership.is_claimed() {
                leadership.sleep(
                    leadership.lock(),
                    || false,
                    |_, stay| (!stay).then_some(()),
                    |()| keepers.sleep(),
                );
                keepers.drain();
            }
            drop(kept);
            mine.leave();
            claims.join().unwrap();
        });
    }
}
