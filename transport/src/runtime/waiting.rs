//! The waiting of a thread for its node: it looks for a while, then leads or follows.
//!
//! Where waiting threads turn the engine themselves, a thread whose wait succeeds stops turning at
//! once and may leave work behind. Either a thread that sleeps for the engine does this work, for
//! which everything is armed ([`settle`](EventLoop::settle)), or the keeper does it a lease later.

use std::{
    hint, slice,
    sync::{Arc, MutexGuard, atomic::Ordering},
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use ibex_base::fork;
use ibex_ring::parking::{self, Condition, Parker, TimedOut, Wakers};

use super::{Driving, EventLoop, PollTarget, yielding::KEPT};
use crate::{
    endpoint::stall::NOTICE,
    engine::{self, Engine, ReadyWires},
    node::Wait,
};

/// Waits until `condition` holds through an event of `first` or any of the `others`.
///
/// A thread could turn only one of several engines, and would miss events of the others while it
/// sleeps. So each engine is led meanwhile by its I/O thread, or by a thread that waits for it
/// alone.
pub(crate) fn wait_for_any<C: Condition>(
    (first, others): (&Arc<EventLoop>, &[Arc<EventLoop>]),
    deadline: Option<Instant>,
    poll_target: PollTarget,
    condition: C,
) -> Result<C::Output, TimedOut> {
    if others.is_empty() {
        return first.wait(deadline, poll_target, condition);
    }
    let _spanning = [slice::from_ref(first), others].map(Spanning::over);
    let driving = match first.node.driving {
        Driving::Waiters => Driving::Thread,
        other => other,
    };
    first.wait_as(driving, (deadline, poll_target), condition)
}

/// Keeps the I/O threads of several engines at work, until dropped.
struct Spanning<'a>(&'a [Arc<EventLoop>]);

impl<'a> Spanning<'a> {
    fn over(event_loops: &'a [Arc<EventLoop>]) -> Self {
        for event_loop in event_loops {
            event_loop.engine.span(|| event_loop.summon_keeper());
        }
        Self(event_loops)
    }
}

impl Drop for Spanning<'_> {
    fn drop(&mut self) {
        for event_loop in self.0 {
            event_loop.engine.unspan();
        }
    }
}

impl EventLoop {
    /// Waits until `condition` holds, spinning first as configured.
    pub(crate) fn wait<C: Condition>(
        &self,
        deadline: Option<Instant>,
        poll_target: PollTarget,
        condition: C,
    ) -> Result<C::Output, TimedOut> {
        self.wait_as(self.node.driving, (deadline, poll_target), condition)
    }

    /// Waits as a thread of a node does that is driven by `driving`.
    #[inline]
    fn wait_as<C: Condition>(
        &self,
        driving: Driving,
        (deadline, poll_target): (Option<Instant>, PollTarget),
        mut condition: C,
    ) -> Result<C::Output, TimedOut> {
        if fork::is_child() {
            // In a fork of the process, no other thread would make the condition hold.
            return condition.check().ok_or(TimedOut);
        }
        let wait = if poll_target == PollTarget::Memory {
            self.node.config.wait
        } else {
            self.node.config.wait_engine
        };
        match driving {
            Driving::Waiters => self.claim(),
            Driving::Tasks => self.leave_reactor(),
            Driving::Callers | Driving::Thread => {}
        }
        let turns = driving != Driving::Thread;
        let spun = self.spin((wait, turns), deadline, poll_target, &mut condition);
        let found = if matches!(spun, Ok(None)) {
            self.sleep_until(driving, deadline, &mut condition)
        } else {
            condition.leave();
            spun.map(|found| found.expect("the spin ended with something"))
        };
        if turns {
            self.settle_turn(true);
        }
        found
    }

    /// Checks `condition` for some microseconds, but for no longer than calls spin. Never sleeps,
    /// turns the engine or gives the core away. This is for tasks that
    /// [look briefly](Self::polls_briefly) for words that peers write to shared memory.
    pub(crate) fn poll_memory<C: Condition>(&self, condition: &mut C) -> Option<C::Output> {
        let moment = POLL_MEMORY.min(self.node.config.wait.spin());
        let began = Instant::now();
        let found = loop {
            (0..SHM_ROUNDS_PER_CLOCK)
                .take_while(|_| !condition.poll_quickly())
                .for_each(|_| hint::spin_loop());
            let found = condition.check();
            if found.is_some() || began.elapsed() >= moment {
                break found;
            }
        };
        condition.leave();
        found
    }

    /// Looks again and again for as long as the configuration says; the caller has looked once.
    ///
    /// Callers turn the engine meanwhile. They do so at each poll where the engine reads their
    /// bytes from a socket. Where completions bring the bytes, they look for completions each time
    /// and turn seldom. They also turn seldom over shared memory, where only control comes through
    /// the engine.
    fn spin<C: Condition>(
        &self,
        (wait, turns_engine): (Wait, bool),
        deadline: Option<Instant>,
        poll_target: PollTarget,
        condition: &mut C,
    ) -> Result<Option<C::Output>, TimedOut> {
        // Set at the first reading of the clock. Earlier polls are too short for reading it.
        let mut begun: Option<(Instant, Instant)> = None;
        let mut round = 0u32;
        // These are powers of two, so that no poll costs a division.
        let (rounds_per_clock, pauses) = match poll_target {
            PollTarget::Memory => (SHM_ROUNDS_PER_CLOCK, 1),
            PollTarget::Socket => (ROUNDS_PER_CLOCK, PAUSES_PER_READ),
            PollTarget::Queue => (QUEUE_ROUNDS_PER_CLOCK, 0),
        };
        let spin = match wait {
            Wait::Adaptive { .. } if self.yielding.is_dear() => Duration::ZERO,
            Wait::Adaptive { spin } if !spin.is_zero() && poll_target == PollTarget::Memory => {
                spin.max(condition.lasts())
            }
            wait => wait.spin(),
        };
        let polls_once = spin.is_zero();
        let between_clocks = match polls_once {
            true => 0,
            false => rounds_per_clock - 1,
        };
        // True if the last wait found that other threads want this core. They get it between polls.
        let mut is_shared = polls_once || self.shares_cores.load(Ordering::Relaxed);
        // Time that this wait's yields have given to other threads.
        let mut given = Duration::ZERO;
        loop {
            round = round.wrapping_add(1);
            let has_moved = turns_engine
                && match poll_target {
                    PollTarget::Memory if !round.is_multiple_of(SHM_ROUNDS_PER_TURN) => false,
                    PollTarget::Queue if round % QUEUE_ROUNDS_PER_TURN != 1 => {
                        self.poll_completions()
                    }
                    _ => self.poll(),
                };
            let polls_closely = has_moved || round & between_clocks == 0;
            if (polls_closely || condition.poll_quickly())
                && let Some(output) = condition.check()
            {
                return Ok(Some(output));
            }
            if !is_shared {
                for _ in 0..pauses {
                    hint::spin_loop();
                }
                if round & between_clocks != 0 {
                    continue;
                }
            }
            // The keeper only checks that the number changes, so two threads at once may count as one.
            let polls = self.presence.load(Ordering::Relaxed).wrapping_add(1);
            self.presence.store(polls, Ordering::Relaxed);
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(TimedOut);
            }
            let (start, ask_at) = begun.get_or_insert_with(|| {
                condition.keep_nothing_back();
                (now, now + ASK_AFTER)
            });
            if wait == Wait::BusyPoll {
                if now >= *ask_at {
                    *ask_at = now + ASK_AGAIN;
                    condition.ask();
                }
                continue;
            }
            if now - *start >= spin || given >= KEPT {
                return Ok(None);
            }
            thread::yield_now();
            let others = now.elapsed();
            given += others;
            match others < KEPT {
                true => self.yielding.was_cheap(),
                false => self.yielding.was_dear(now + others, others),
            }
            if is_shared != (others >= SHARED) {
                is_shared = !is_shared;
                self.shares_cores.store(is_shared, Ordering::Relaxed);
            }
            // The time of other threads does not count as spinning; `given` bounds it.
            *start += others;
        }
    }

    fn sleep_until<C: Condition>(
        &self,
        driving: Driving,
        deadline: Option<Instant>,
        condition: &mut C,
    ) -> Result<C::Output, TimedOut> {
        Wakers::prepare();
        // A call that holds up tasks wakes up once more, to report that.
        let holds_up = self.node.held_tasks.are_held_up();
        let mut notice_at = holds_up.then(|| Instant::now() + NOTICE);
        loop {
            let until = [deadline, notice_at].into_iter().flatten().min();
            let found = parking::sleep(condition, |waker, parker| {
                self.sleep(driving, (waker, parker), until);
            });
            if let Some(output) = found {
                self.leave();
                return Ok(output);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.leave();
                return Err(TimedOut);
            }
            if notice_at.is_some_and(|notice_at| Instant::now() >= notice_at) {
                notice_at = None;
                self.node.held_tasks.warn(NOTICE);
            }
        }
    }

    /// Claims the seat of the I/O thread, unless a thread waits for several engines.
    #[inline]
    fn claim(&self) {
        self.engine
            .claim(|| !self.engine.is_spanned(), || self.bell.wake());
    }

    /// Leaves the seat to another thread that wants it.
    fn leave(&self) {
        self.engine.pass_on(|| self.summon_keeper());
    }

    /// Sleeps until woken, until the deadline, or until the seat is vacant.
    fn sleep(
        &self,
        driving: Driving,
        (waker, parker): (&Waker, &Parker),
        deadline: Option<Instant>,
    ) {
        let park = || {
            parker.park(deadline);
        };
        if driving == Driving::Thread {
            park();
        } else if let Some(_lead) = self.engine.try_lead() {
            while !parker.is_woken() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
                self.lead(parker, deadline);
            }
        } else {
            // Everything that this thread has turned must be armed again for the leader.
            if self.node.driving.has_standing_sleeper() {
                self.settle();
            }
            self.engine.follow(waker, || self.claim(), park);
        }
    }

    /// Runs a round of the leader: turn until nothing moves, arm, look again, sleep.
    pub(crate) fn lead(&self, parker: &Parker, deadline: Option<Instant>) {
        self.leave_reactor();
        let Some(engine) = self.turn_keeping(self.engine.lock()) else {
            return;
        };
        let mut elsewhere = None;
        let mut ready = ReadyWires::NOTHING;
        self.engine.sleep(
            engine,
            || {
                elsewhere = parker.sleep_at(self.bell.bell());
                elsewhere.is_none()
            },
            |engine, stay_awake| {
                let now = Instant::now();
                let next = engine.prepare_sleep(now, stay_awake)?;
                let until = [next, deadline].into_iter().flatten().min();
                engine.sleeps_until = until;
                Some(until.map(|until| until - now.min(until)))
            },
            |left| engine::sleep(&self.epoll, left, &mut ready),
        );
        drop(elsewhere);
        self.turn(self.engine.lock(), &ready);
    }

    /// Runs a turn, and keeps the lock if nothing moved and no work remains for after the lock. A
    /// timer that went off moves nothing, but may leave such work: a peer to dial.
    fn turn_keeping<'a>(
        &'a self,
        mut engine: MutexGuard<'a, Engine>,
    ) -> Option<MutexGuard<'a, Engine>> {
        let mut context = self.context();
        let progress = self.turn_engine(&mut engine, &ReadyWires::NOTHING, &mut context);
        if progress || !context.is_empty() {
            self.end_turn(engine, context);
            return None;
        }
        Some(engine)
    }

    /// Runs a turn for events from a thread that does not wait for an answer. The results go out at
    /// once, without waking the thread that sleeps for the engine.
    pub(crate) fn run_claimed(&self) {
        let Some(mut engine) = self.engine.try_lock() else {
            // The thread that has the engine may have looked for events already.
            self.rouse_leader();
            return;
        };
        if engine.bursts.is_stream(Instant::now()) {
            drop(engine);
            // The events are a stream, which the leader takes in batches.
            self.rouse_somebody();
            return;
        }
        let moved = self.turn(engine, &ReadyWires::NOTHING);
        self.settle_turn(moved);
    }

    /// Makes the thread that sleeps for the engine, or the keeper, take the events.
    pub(super) fn rouse_somebody(&self) {
        let is_rung = self.engine.rouse(|| self.bell.wake());
        if !is_rung && self.engine.is_vacant() {
            self.summon_keeper();
        }
    }

    /// Arms everything again after turns of a thread other than the leader. So the sleeper misses
    /// nothing, and the next published message rings. Wakes the leader if its deadline has become
    /// earlier, or if there is something to do.
    pub(crate) fn settle(&self) {
        let engine = match self.node.driving {
            // Another thread may hold the lock and not settle, so this one waits for it.
            Driving::Tasks => Some(self.engine.lock()),
            _ => self.engine.try_lock(),
        };
        let Some(mut engine) = engine else {
            // The thread that holds the lock settles, or leads.
            return;
        };
        let now = Instant::now();
        let is_settled = match engine.prepare_sleep(now, false) {
            None => false,
            Some(next) if !self.engine.has_sleeping_leader() => {
                engine.set_alarm(now, next);
                true
            }
            Some(next) => next.is_none_or(|next| {
                let until = engine.sleeps_until;
                until.is_some_and(|until| until <= next)
            }),
        };
        drop(engine);
        if !is_settled {
            self.rouse_leader();
        }
    }
}

const _: () = assert!(
    SHM_ROUNDS_PER_CLOCK.is_power_of_two()
        && ROUNDS_PER_CLOCK.is_power_of_two()
        && QUEUE_ROUNDS_PER_CLOCK.is_power_of_two()
);

/// Looks at a shared-memory word between two turns of the engine.
const SHM_ROUNDS_PER_TURN: u32 = 1024;
/// Looks at a shared-memory word between two readings of the clock.
const SHM_ROUNDS_PER_CLOCK: u32 = 32;
/// Looks at the completion queues between two turns of the engine. A turn takes as long as some
/// twenty looks, and evicts the path of a message from the first-level cache.
const QUEUE_ROUNDS_PER_TURN: u32 = 128;
/// Looks at the completion queues between two readings of the clock.
const QUEUE_ROUNDS_PER_CLOCK: u32 = 32;
/// Polls between two readings of the clock, where each comes with a turn of the engine.
const ROUNDS_PER_CLOCK: u32 = 4;
/// Spin-loop pauses between two polls of a socket, about 200 ns. A thread that polls without pauses
/// holds the socket's lock half of the time, and the kernel waits for that lock to deliver data.
pub(super) const PAUSES_PER_READ: u32 = 8;
/// A yield that takes longer has let another thread run.
const SHARED: Duration = Duration::from_nanos(800);
/// Time for which a busy poll looks before it asks the other side.
const ASK_AFTER: Duration = Duration::from_micros(50);
/// Time for which a busy poll looks before it asks again.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// The length of a task's look at memory. It delays the other tasks of its thread for no longer than
/// waking a task takes.
const POLL_MEMORY: Duration = Duration::from_micros(4);
