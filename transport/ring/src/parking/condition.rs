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

use std::task::{Poll, Waker};

use super::{Ticket, WaitSlot};

/// An event that a thread or a task can wait for.
pub trait Condition {
    /// The result of the condition when it has come true.
    type Output;

    /// Looks whether the event has happened. Cheap: called again and again while spinning.
    fn look(&mut self) -> Option<Self::Output>;

    /// Returns whether a look may succeed, judging by the cheapest sign. A look follows now and
    /// then in any case.
    fn glance(&mut self) -> bool {
        true
    }

    /// The first looks have found nothing. News that costs no frame is told now, since the other
    /// side may be waiting for it.
    fn keep_nothing_back(&mut self) {}

    /// Tells the other side what the caller waits for, so that the other side does not hold it
    /// back. Called when looking has not helped for a while, and again from time to time.
    fn ask(&mut self) {}

    /// Leaves `waker` wherever the event may be noticed. A look follows, and then the caller sleeps
    /// or is pending. A waker that an earlier call left is replaced.
    fn register(&mut self, waker: &Waker);

    /// Takes back what [`register`](Self::register) and [`ask`](Self::ask) left, because the caller
    /// no longer waits, or pauses its wait.
    fn leave(&mut self);
}

impl<C: Condition + ?Sized> Condition for &mut C {
    type Output = C::Output;

    fn look(&mut self) -> Option<C::Output> {
        (**self).look()
    }

    fn glance(&mut self) -> bool {
        (**self).glance()
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
    let mut found = condition.look();
    if found.is_none() {
        condition.register(waker);
        condition.ask();
        turn();
        found = condition.look();
    }
    match found {
        Some(found) => {
            condition.leave();
            Poll::Ready(found)
        }
        None => Poll::Pending,
    }
}

/// A condition that a function decides, whose waiters are woken at one slot.
#[derive(Debug)]
pub struct AtSlot<'a, F> {
    slot: &'a WaitSlot,
    held: &'a mut Option<Ticket>,
    look: F,
}

impl<'a, F> AtSlot<'a, F> {
    /// Makes the condition for one waiter, whose ticket is kept in `held` while it waits.
    pub fn new(slot: &'a WaitSlot, held: &'a mut Option<Ticket>, look: F) -> Self {
        Self { slot, held, look }
    }
}

impl<T, F: FnMut() -> Option<T>> Condition for AtSlot<'_, F> {
    type Output = T;

    fn look(&mut self) -> Option<T> {
        (self.look)()
    }

    fn register(&mut self, waker: &Waker) {
        self.slot.renew(self.held, waker);
    }

    fn leave(&mut self) {
        self.slot.leave(self.held);
    }
}
