//! Waiting at several receiving ends at a time: which of them has something.
//!
//! A thread waits in one place, and ends have a place each. So each end gets a waker that
//! tells that one place, when the thread is about to sleep; it takes them back when it is
//! awake. Nothing is polled meanwhile, and nobody stands between.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use super::{ReceiveHandle, TaskWait};
use crate::{
    driver::{Condition, Driver, Patience, TimedOut},
    ring::WaitSlot,
};

/// Several receiving ends, by number.
pub trait Ends {
    /// How many there are.
    fn count(&self) -> usize;
    /// One of them.
    fn end(&mut self, number: usize) -> &mut ReceiveHandle;
}

/// Looks at several receiving ends in turns.
#[derive(Debug)]
pub struct Several {
    place: Arc<Place>,
    waker: Waker,
    waits: Vec<TaskWait>,
    /// The end to look at first.
    next: usize,
}

/// Where the thread waits.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) slot: WaitSlot,
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        self.slot.wake_all();
    }
}

/// A place of one's own, and what tells it.
pub(super) fn place() -> (Arc<Place>, Waker) {
    let place = Arc::<Place>::default();
    (place.clone(), place.into())
}

impl Several {
    /// Looks at the first end first.
    #[must_use]
    pub fn new() -> Self {
        let (place, waker) = place();
        Self {
            place,
            waker,
            waits: Vec::new(),
            next: 0,
        }
    }

    /// The number of an end that has a message, or its end, to be received without waiting.
    /// Of those that have, the one that comes next in the round.
    ///
    /// # Panics
    /// If there are no ends, or, where callers turn the engine, of more than one node.
    pub fn ready(&mut self, ends: &mut dyn Ends, patience: Patience) -> Result<usize, TimedOut> {
        let count = ends.count();
        assert!(count > 0, "there is nothing to wait for");
        if let Some(found) = self.look(ends) {
            return Ok(found);
        }
        let session = ends.end(0).session().clone();
        let runtime = session.runtime();
        let mut looks = session.looks();
        for number in 1..count {
            let other = ends.end(number).session();
            assert!(
                runtime.driver() == Driver::Threads || Arc::ptr_eq(other.runtime(), runtime),
                "receivers of several nodes, whose engines are turned by callers"
            );
            looks = looks.max(other.looks());
        }
        let Patience::Until(deadline) = patience else {
            session.poll();
            return self.look(ends).ok_or(TimedOut);
        };
        self.waits.resize_with(count, TaskWait::default);
        let place = self.place.clone();
        runtime.wait(
            &place.slot,
            deadline,
            looks,
            Ready {
                several: self,
                ends,
            },
        )
    }

    fn look(&mut self, ends: &mut dyn Ends) -> Option<usize> {
        let count = ends.count();
        let found = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|&number| ends.end(number).is_ready())?;
        self.next = found + 1;
        Some(found)
    }
}

impl Default for Several {
    fn default() -> Self {
        Self::new()
    }
}

/// The condition "one of them has something".
struct Ready<'a> {
    several: &'a mut Several,
    ends: &'a mut dyn Ends,
}

impl Condition for Ready<'_> {
    type Output = usize;

    fn look(&mut self) -> Option<usize> {
        self.several.look(self.ends)
    }

    fn keep_nothing_back(&mut self) {
        for number in 0..self.several.waits.len() {
            self.ends.end(number).keep_nothing_back();
        }
    }

    fn arm(&mut self) {
        let Several { waits, waker, .. } = self.several;
        for (number, wait) in waits.iter_mut().enumerate() {
            self.ends.end(number).register(wait, waker);
        }
    }

    fn disarm(&mut self) {
        for (number, wait) in self.several.waits.iter_mut().enumerate() {
            self.ends.end(number).leave(wait);
        }
    }
}
