//! An event that threads and tasks wait for: one form for both.
//!
//! ```text
//!   thread                            task
//!   look; spin: look, look, ...       look
//!   register its waker; ask           register its waker; ask; turn
//!   look                              look
//!   sleep                             pending
//!   leave                             leave, when it is ready or dropped
//! ```
//!
//! A waker that was registered is taken back by `leave`, and the waiter may register again. The
//! order and the barriers are those of [`WaitSlot`].

use std::{
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use super::{Parker, Ticket, TimedOut, WaitSlot, thread_waker};

/// An event that a thread or a task can wait for.
pub trait Condition {
    /// The result of the condition when it has come true.
    type Output;

    /// Looks whether the event has happened. Cheap: called again and again while spinning.
    fn check(&mut self) -> Option<Self::Output>;

    /// Returns whether a check may succeed, judging by the cheapest sign. A check follows now and
    /// then in any case.
    fn poll_quickly(&mut self) -> bool {
        true
    }

    /// Returns how long what the caller waits for has lately taken to come, in shared memory. A wait
    /// that spins before it sleeps spins at least as long.
    fn lasts(&self) -> Duration {
        Duration::ZERO
    }

    /// The first checks have found nothing. Changes that cost no frame are reported now, since the other
    /// side may be waiting for it.
    fn keep_nothing_back(&mut self) {}

    /// Tells the other side what the caller waits for, so that the other side does not hold it
    /// back. Called when looking has not helped for a while, and again from time to time.
    fn ask(&mut self) {}

    /// Leaves `waker` wherever the event may be noticed. A check follows, and then the caller sleeps
    /// or is pending. A waker that an earlier call left is replaced.
    fn register(&mut self, waker: &Waker);

    /// Takes back what [`register`](Self::register) and [`ask`](Self::ask) left, because the caller
    /// no longer waits, or pauses its wait.
    fn leave(&mut self);
}

impl<C: Condition + ?Sized> Condition for &mut C {
    type Output = C::Output;

    fn check(&mut self) -> Option<C::Output> {
        (**self).check()
    }

    fn poll_quickly(&mut self) -> bool {
        (**self).poll_quickly()
    }

    fn lasts(&self) -> Duration {
        (**self).lasts()
    }

    fn keep_nothing_back(&mut self) {
        (**self).keep_nothing_back();
    }

    fn ask(&mut self) {
        (**self).ask();
    }

    fn register(&mut self, waker: &Waker) {
        (**self).register(waker);
    }

    fn leave(&mut self) {
        (**self).leave();
    }
}

/// Polls `condition` for a task. Where the event may come by a turn of the caller, `turn` runs one.
pub fn poll<C: Condition>(mut condition: C, waker: &Waker, turn: impl FnOnce()) -> Poll<C::Output> {
    match condition.check() {
        Some(found) => {
            condition.leave();
            Poll::Ready(found)
        }
        None => poll_again(condition, waker, turn),
    }
}

/// Polls as [`poll`] does, for a caller that has just looked in vain.
pub fn poll_again<C: Condition>(
    mut condition: C,
    waker: &Waker,
    turn: impl FnOnce(),
) -> Poll<C::Output> {
    condition.register(waker);
    condition.ask();
    turn();
    match condition.check() {
        Some(found) => {
            condition.leave();
            Poll::Ready(found)
        }
        None => Poll::Pending,
    }
}

/// Blocks the calling thread until `condition` comes true. For events that need no turn of the
/// caller.
///
/// # Errors
///
/// [`TimedOut`]: the condition has not come true by `deadline`.
pub fn block<C: Condition>(
    mut condition: C,
    deadline: Option<Instant>,
) -> Result<C::Output, TimedOut> {
    loop {
        let found = sleep(&mut condition, |_, parker| {
            parker.park(deadline);
        });
        if let Some(found) = found {
            return Ok(found);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(TimedOut);
        }
    }
}

/// Lets the calling thread sleep once for `condition`, by `park`, unless a check behind the
/// registration succeeds. Looks again after the sleep.
pub fn sleep<C: Condition>(
    condition: &mut C,
    park: impl FnOnce(&Waker, &Parker),
) -> Option<C::Output> {
    let (waker, parker) = thread_waker();
    condition.register(&waker);
    condition.ask();
    let found = condition.check();
    if found.is_none() {
        park(&waker, &parker);
    }
    condition.leave();
    found.or_else(|| condition.check())
}

/// A condition that a function decides, whose waiters are woken at one slot.
#[derive(Debug)]
pub struct AtSlot<'a, F> {
    slot: &'a WaitSlot,
    held: &'a mut Option<Ticket>,
    check: F,
}

impl<'a, F> AtSlot<'a, F> {
    /// Makes the condition for one waiter, whose ticket is kept in `held` while it waits.
    pub fn new(slot: &'a WaitSlot, held: &'a mut Option<Ticket>, check: F) -> Self {
        Self { slot, held, check }
    }
}

impl<T, F: FnMut() -> Option<T>> Condition for AtSlot<'_, F> {
    type Output = T;

    fn check(&mut self) -> Option<T> {
        (self.check)()
    }

    fn register(&mut self, waker: &Waker) {
        self.slot.renew(self.held, waker);
    }

    fn leave(&mut self) {
        self.slot.leave(self.held);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        thread,
    };

    use super::*;

    #[test]
    fn a_thread_blocks_until_the_event_and_leaves_nothing() {
        let (slot, events) = (WaitSlot::new(), AtomicU32::new(0));
        let check = || (events.load(Ordering::Acquire) == 2).then_some("two");
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    while !slot.is_waiting() {
                        thread::yield_now();
                    }
                    events.fetch_add(1, Ordering::Release);
                    slot.wake_all();
                }
            });
            let mut held = None;
            let found = block(AtSlot::new(&slot, &mut held, check), None);
            assert_eq!(found, Ok("two"));
            assert!(held.is_none());
        });
        assert!(!slot.is_waiting());
    }

    #[test]
    fn a_thread_whose_time_is_up_leaves_nothing() {
        let slot = WaitSlot::new();
        let mut held = None;
        let never = AtSlot::new(&slot, &mut held, || None::<()>);
        assert_eq!(block(never, Some(Instant::now())), Err(TimedOut));
        assert!(held.is_none() && !slot.is_waiting());
    }

    #[test]
    fn a_poll_leaves_its_waker_only_while_it_is_pending() {
        let (slot, events) = (WaitSlot::new(), AtomicU32::new(0));
        let check = || (events.load(Ordering::Acquire) > 0).then_some(());
        let mut held = None;
        let waker = Waker::noop();
        assert!(poll(AtSlot::new(&slot, &mut held, check), waker, || ()).is_pending());
        assert!(slot.is_waiting());
        // The turn behind the registration brings the event.
        let turn = || events.store(1, Ordering::Release);
        assert!(poll(AtSlot::new(&slot, &mut held, check), waker, turn).is_ready());
        assert!(held.is_none() && !slot.is_waiting());
    }
}
