//! An engine behind its lock, the one thread that sleeps for it, and the threads whose changes the
//! sleeper must not miss.
//!
//! The thread that holds the lock may turn the engine. One thread at a time, the *leader*, sleeps
//! where the engine's changes come in, without the lock; others *follow*, each asleep in a
//! place of its own. A thread that has changes of another kind (a mark, a guard that settled,
//! data for a waiter) leaves it where the leader looks, and rings a bell that the leader
//! sleeps on, if it sleeps.
//!
//! ```text
//!   leader                            thread with changes
//!   lock; turn: nothing moves         leave it
//!   sleeping = 1                      fence
//!   fence                             sleeping? ring the bell
//!   look: marked? woken? work?
//!   unlock; sleep, if nothing
//!   sleeping = 0; lock; turn
//! ```
//!
//! There is one *seat*. Threads that wait for the engine's sake take it when it is vacant. The
//! *keeper*, a thread that does nothing else, takes it when no other does, and gives it up to a
//! thread that claims it. While others lead for long the keeper stands by, asleep like a follower,
//! but is woken only when no thread follows.
//!
//! Rules, and the race that each is for:
//!
//! 1. SLEEP: the leader says that it sleeps before it looks, behind a fence. A thread with changes
//!    leaves it before it asks whether a thread sleeps, behind a fence. So either the check finds
//!    the changes or the question finds the sleeper. Model: loom_marked_or_roused.
//! 2. A thread that wants a turn and does not get the lock leaves a mark: the lock's holder may
//!    have looked at those changes already, in this turn. Model: loom_driven_or_roused.
//! 3. The leader looks for its own wake-up too: another thread's turn may have fetched what
//!    it waits for after it looked and before it led. From that look on its waker rings the
//!    bell. Model: loom_woken_whoever_leads.
//! 4. The bell, or whatever else the leader armed, is not drained while the leader sleeps.
//!    Otherwise a thread that turns the engine in that time would take a ring away from the leader.
//!    Model: loom_the_bell_is_the_sleepers.
//! 5. LEAVE: a thread that follows, or stands by, registers before it looks whether a thread still
//!    leads; the leader says that it leaves before it wakes one of the threads that registered.
//!    Model: loom_the_seat_is_passed_on, loom_the_keeper_stands_by.
//! 6. One follower is woken for a vacant seat, so a follower that goes away without leading passes
//!    the seat on: it may be the follower that was woken. Model: loom_a_follower_may_give_up.
//! 7. A claim is made before the leader is rung for, and the keeper looks for claims where
//!    it looks for changes. Model: loom_the_seat_is_claimed.
//! 8. A program may sleep on the bell by itself, between turns, and ibex does not know when. The
//!    thread that has the engine may be in the last moments of such a turn, and has looked at the
//!    changes already. So a thread that leaves a mark then rings in any case. Model:
//!    loom_a_watcher_is_rung_for.
//! 9. A task that drives the engine *parks*: its executor sleeps for it, and no thread leads. The
//!    task parks as the leader falls asleep, behind a fence and with a check (rule 1). Model:
//!    loom_marked_or_unparked.
//! 10. SPAN: a thread that waits for several engines leads none of them, so the keeper must. That
//!     thread counts itself before it looks whether the seat is vacant, behind a fence. A thread that
//!     waited and goes away leaves the seat before it looks at that count, behind a fence. So one of
//!     the two summons the keeper. Model: loom_a_vacant_seat_is_kept_for_who_spans. The keeper that
//!     leaves for a claim looks at the count in the same way before it naps. Model:
//!     loom_the_keeper_stays_for_who_spans.
//!
//! A change costs one fence and one load for the thread that has it. Nothing here is per message.

use std::sync::{PoisonError, TryLockError};
use std::task::Waker;

use ibex_base::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, fence};

use crate::parking::WaitSlot;

/// An engine, with the seat of the thread that sleeps for it.
#[derive(Debug)]
pub struct Leadership<E> {
    engine: Mutex<E>,
    /// The owner of the seat, taken and left by the threads that lead.
    seat: AtomicU32,
    /// A thread wants the keeper's seat. May stay true for too long.
    claimed: AtomicBool,
    /// The number of times that a waiting thread took the seat.
    leads: AtomicU32,
    /// The leader sleeps, or is about to and will look once more. Set under the engine's
    /// lock.
    sleeping: AtomicBool,
    /// The driving task is parked, or is about to be and will look once more. Set under the
    /// engine's lock.
    parked: AtomicBool,
    /// Changes were left since the last turn.
    marked: AtomicBool,
    /// Threads that wait while another leads.
    followers: WaitSlot,
    /// The keeper, while it stands by.
    standby: WaitSlot,
    /// Number of threads that wait for several engines, and so want the keeper to lead this one.
    spanning: AtomicU32,
}

/// The seat is free.
const VACANT: u32 = 0;
/// A thread that waits leads.
const TAKEN: u32 = 1;
/// The keeper leads.
const KEPT: u32 = 2;

impl<E> Leadership<E> {
    /// Creates the state in which no thread leads.
    pub fn new(engine: E) -> Self {
        Self {
            engine: Mutex::new(engine),
            seat: AtomicU32::new(VACANT),
            claimed: AtomicBool::new(false),
            leads: AtomicU32::new(0),
            sleeping: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            followers: WaitSlot::with_capacity(4),
            standby: WaitSlot::with_capacity(1),
            spanning: AtomicU32::new(0),
        }
    }

    /// Waits for the engine's lock and returns the engine.
    pub fn lock(&self) -> MutexGuard<'_, E> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the engine, unless another thread has its lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, E>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    // ---- Changes ------------------------------------------------------------------------

    /// Leaves a mark that a turn is wanted. Call [`rouse`](Self::rouse) if the turn cannot wait.
    pub fn mark(&self) {
        // MARK, pairs with `take_mark`: the turn sees what the mark is for. A swap and not a store,
        // which would overwrite the release of a mark before it. Model: loom_marks_of_two_threads.
        self.marked.swap(true, Ordering::Release);
    }

    /// Returns whether a mark was left that no turn has taken.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// Returns whether a mark was left since the last call; for the thread that turns the engine.
    pub fn take_mark(&self) -> bool {
        // MARK, pairs with `mark`. The swap runs only if there is a mark.
        self.marked.load(Ordering::Relaxed) && self.marked.swap(false, Ordering::Acquire)
    }

    /// Rings for the leader if it sleeps, or for the driving task if that is parked. Leave the change
    /// before (rule 1). Returns whether it rang.
    pub fn rouse(&self, ring: impl FnOnce()) -> bool {
        // SLEEP, pairs with `sleep`.
        fence(Ordering::SeqCst);
        let is_asleep = self.has_sleeper();
        if is_asleep {
            ring();
        }
        is_asleep
    }

    /// Turns the engine, or leaves that to the thread that has it now; never waits.
    ///
    /// `is_watched` says that a program sleeps on the bell itself, between the turns that it
    /// runs.
    pub fn drive(
        &self,
        turn: impl FnOnce(MutexGuard<'_, E>),
        is_watched: bool,
        ring: impl FnOnce(),
    ) {
        match self.try_lock() {
            Some(engine) => return turn(engine),
            // Rule 2.
            None => self.mark(),
        }
        // Rule 8.
        if is_watched {
            ring();
        } else {
            self.rouse(ring);
        }
    }

    /// Returns whether the bell may be drained; for the thread that holds the engine (rule 4).
    ///
    /// Returns false for a moment too long when the leader has woken up and not taken the lock yet.
    /// Never returns true while the leader sleeps.
    pub fn may_drain(&self) -> bool {
        !self.sleeping.load(Ordering::Relaxed)
    }

    /// Returns whether a thread sleeps for the engine, or its driving task is parked, or either is
    /// about to. Everything that was armed for the engine then has to stay armed.
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) || self.is_parked()
    }

    /// Returns whether the leader sleeps, or is about to.
    pub fn has_sleeping_leader(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    // ---- Leading and following -------------------------------------------------------

    /// Takes the lead, unless another thread has it.
    pub fn try_lead(&self) -> Option<Lead<'_, E>> {
        let lead = self.try_take(TAKEN)?;
        // Only the keeper reads the count, to see whether another thread has led.
        let leads = self.leads.load(Ordering::Relaxed).wrapping_add(1);
        self.leads.store(leads, Ordering::Relaxed);
        Some(lead)
    }

    /// Like [`try_lead`](Self::try_lead), for the keeper.
    pub fn try_keep(&self) -> Option<Lead<'_, E>> {
        self.try_take(KEPT)
    }

    fn try_take(&self, who: u32) -> Option<Lead<'_, E>> {
        // SEAT, pairs with `Lead::drop`: the count of leads is that of the leaders before.
        self.seat
            .compare_exchange(VACANT, who, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Lead { of: self })
    }

    /// Returns whether a waiting thread leads, and how often one took the seat so far.
    pub fn leads(&self) -> (bool, u32) {
        let is_led = self.seat.load(Ordering::Relaxed) == TAKEN;
        (is_led, self.leads.load(Ordering::Relaxed))
    }

    /// Returns whether the seat is free.
    pub fn is_vacant(&self) -> bool {
        self.seat.load(Ordering::Relaxed) == VACANT
    }

    /// Returns whether a thread wants the seat that the keeper has.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Claims the seat if the keeper has it and `may_claim` returns true. The keeper leaves it
    /// soon.
    #[inline]
    pub fn claim(&self, may_claim: impl FnOnce() -> bool, ring: impl FnOnce()) {
        if self.seat.load(Ordering::Relaxed) == KEPT && may_claim() {
            self.claim_kept(ring);
        }
    }

    #[cold]
    fn claim_kept(&self, ring: impl FnOnce()) {
        // Without this check, each poll of a spinning thread would cost a fence.
        if !self.claimed.swap(true, Ordering::Relaxed) {
            self.rouse(ring);
        }
    }

    /// Sleeps until the seat is vacant, or `waker` is used for another reason; `park` sleeps
    /// until then. `claim` [claims](Self::claim) the seat where the thread wants it. A thread that
    /// followed leads, or [passes the seat on](Self::pass_on).
    pub fn follow(&self, waker: &Waker, claim: impl FnOnce(), park: impl FnOnce()) {
        let ticket = self.followers.register(waker);
        claim();
        // LEAVE, pairs with `Lead::drop`; the barrier is in `register`.
        if self.seat.load(Ordering::Relaxed) != VACANT {
            park();
        }
        self.followers.deregister(ticket);
    }

    /// Sleeps like a follower until no other thread leads or follows, or `waker` is used for
    /// another reason; for the keeper.
    pub fn stand_by(&self, waker: &Waker, park: impl FnOnce()) {
        let ticket = self.standby.register(waker);
        // LEAVE, as in `follow`.
        if self.seat.load(Ordering::Relaxed) != VACANT {
            park();
        }
        self.standby.deregister(ticket);
    }

    /// Wakes a thread that may want the seat, if it is free; for a follower that does not lead.
    /// Summons the keeper if a thread waits for several engines.
    pub fn pass_on(&self, summon: impl FnOnce()) {
        if self.is_vacant() {
            self.wake_next();
        }
        // SPAN, pairs with `span`: the seat was left before.
        fence(Ordering::SeqCst);
        if self.is_spanned() && self.is_vacant() {
            summon();
        }
    }

    /// Notes that a thread waits for several engines, until [`unspan`](Self::unspan). Summons the
    /// keeper if no thread leads.
    pub fn span(&self, summon: impl FnOnce()) {
        self.spanning.fetch_add(1, Ordering::Relaxed);
        // SPAN, pairs with `pass_on` and `Lead::drop`.
        fence(Ordering::SeqCst);
        if self.is_vacant() {
            summon();
        }
    }

    /// Takes a [`span`](Self::span) back.
    pub fn unspan(&self) {
        self.spanning.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether a thread waits for several engines. For the keeper, after it was summoned,
    /// and as a hint for others.
    pub fn is_spanned(&self) -> bool {
        self.spanning.load(Ordering::Relaxed) > 0
    }

    fn wake_next(&self) {
        if !self.followers.wake_one() {
            self.standby.wake_all();
        }
    }

    /// Goes to sleep for the engine, whose last turn moved nothing; for the leader alone.
    ///
    /// `is_woken` says whether the leader was woken already. `check` looks at everything else behind
    /// the fence. It is told whether the leader has to stay awake for what was found so far. It
    /// returns what `sleep` needs, or `None` if there is something to do. `sleep` returns when the
    /// bell or anything else rings.
    pub fn sleep<T, R>(
        &self,
        mut engine: MutexGuard<'_, E>,
        is_woken: impl FnOnce() -> bool,
        check: impl FnOnce(&mut E, bool) -> Option<T>,
        sleep: impl FnOnce(T) -> R,
    ) -> Option<R> {
        self.sleeping.store(true, Ordering::Relaxed);
        // SLEEP, pairs with `rouse`.
        fence(Ordering::SeqCst);
        let marked = self.marked.load(Ordering::Relaxed);
        // Threads claim only the keeper's seat (rule 7).
        let is_claimed = self.is_claimed() && self.seat.load(Ordering::Relaxed) == KEPT;
        // Rule 3.
        let is_woken = is_woken();
        let wanted = check(&mut engine, marked || is_claimed || is_woken);
        drop(engine);
        let slept = wanted.map(sleep);
        self.sleeping.store(false, Ordering::Relaxed);
        slept
    }

    // ---- The driving task ------------------------------------------------------------

    /// Parks the driving task, whose last turn moved nothing. Returns whether it may wait now.
    ///
    /// `check` looks at everything behind the fence. It is told whether a mark was left, and returns
    /// false if there is work to do.
    pub fn park(
        &self,
        mut engine: MutexGuard<'_, E>,
        check: impl FnOnce(&mut E, bool) -> bool,
    ) -> bool {
        self.parked.store(true, Ordering::Relaxed);
        // SLEEP, pairs with `rouse`.
        fence(Ordering::SeqCst);
        let is_marked = self.marked.load(Ordering::Relaxed);
        let may_wait = check(&mut engine, is_marked);
        if !may_wait {
            self.unpark();
        }
        may_wait
    }

    /// Notes that the driving task runs again.
    pub fn unpark(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    /// Returns whether the driving task is parked, or is about to be.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }
}

/// The lead, until dropped; a panic drops it too.
#[derive(Debug)]
pub struct Lead<'a, E> {
    of: &'a Leadership<E>,
}

impl<E> Drop for Lead<'_, E> {
    fn drop(&mut self) {
        let is_kept = self.of.seat.load(Ordering::Relaxed) == KEPT;
        if is_kept {
            // The claim is cleared before the seat is vacant. A claim that comes later is
            // superfluous: the keeper then leaves at once when it next leads. Cleared after, a new
            // claim would be lost.
            self.of.claimed.store(false, Ordering::Relaxed);
        }
        // LEAVE, pairs with `follow` and `stand_by`; the barrier is in `wake_one`. SEAT, pairs with
        // `try_take`.
        self.of.seat.store(VACANT, Ordering::Release);
        self.of.wake_next();
        if is_kept {
            // SPAN, pairs with `span`: the keeper looks next whether it is wanted.
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod mail_models;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, loom))]
mod seat_models;
