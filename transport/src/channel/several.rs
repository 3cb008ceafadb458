//! Waiting at several ends at once for the first event.
//!
//! Each end has a waiting place, and all peers of a node together have another. When the thread is
//! about to sleep, it leaves its waker at each of these places, and takes all back when it is awake.
//! Nothing is polled meanwhile, and no other thread takes part.

use std::{fmt, slice, sync::Arc, task::Waker};

use ibex_base::fork;
use ibex_protocol::format::control::Ask;
use ibex_ring::parking::{Condition, Patience, TimedOut};

use super::{ReceiveHandle, SendHandle};
use crate::{
    endpoint::{send_end::SendEnd, send_wait::Registration},
    runtime::{Driver, EventLoop, PollTarget, wait_for_any},
};

/// Where callers turn the engine, one of this many calls that find an event at once runs a turn. So
/// an end that always has an event does not keep other ends from getting theirs.
pub const FOUND_PER_TURN: u32 = 64;

/// The event to wait for at an end.
#[derive(Debug)]
pub enum Awaited<'a> {
    /// An event that stays there until it is taken.
    Event(&'a mut dyn AwaitedEnd),
    /// The acknowledgement of the message with this sequence, or the fact that none will come.
    Acknowledgement(&'a SendHandle, u64),
}

/// The condition "this end has an event", as one of several.
pub trait AwaitedEnd: Condition<Output = ()> + fmt::Debug {
    /// Returns the engines whose turns bring the events.
    fn event_loops(&self) -> &[Arc<EventLoop>];
    /// Returns the kind of poll that a waiting call needs.
    fn poll_target(&self) -> PollTarget;
    /// Notes that a call has found nothing, and whether it waits.
    fn missed(&mut self, _waits: bool) {}
}

/// The event is a message, or the end of the channel.
impl Condition for ReceiveHandle {
    type Output = ();

    fn check(&mut self) -> Option<()> {
        self.is_ready().then_some(())
    }

    fn keep_nothing_back(&mut self) {
        ReceiveHandle::keep_nothing_back(self);
    }

    fn register(&mut self, waker: &Waker) {
        ReceiveHandle::register(self, waker);
    }

    fn leave(&mut self) {
        ReceiveHandle::leave(self);
    }
}

impl AwaitedEnd for ReceiveHandle {
    fn event_loops(&self) -> &[Arc<EventLoop>] {
        slice::from_ref(self.session().requests.event_loop())
    }

    fn poll_target(&self) -> PollTarget {
        self.session().poll_target()
    }

    fn missed(&mut self, _waits: bool) {
        self.end().watch_open();
    }
}

/// The end of a sender, with what the wait for an acknowledgement leaves there.
#[derive(Debug)]
struct Acknowledged<'a> {
    end: &'a SendEnd,
    ask: Ask,
    wait: &'a mut Registration,
}

impl SendHandle {
    /// Returns whether message `sequence` is acknowledged, or never will be.
    #[must_use]
    pub fn is_answered(&self, sequence: u64) -> bool {
        fork::is_child() || self.end.check_for(&Ask::acknowledged(sequence)).is_some()
    }

    /// Returns the condition that message `sequence` is acknowledged, or never will be, for a wait
    /// that has this one as a part. What it leaves lies where that of
    /// [`poll_acked`](Self::poll_acked) lies.
    pub fn acknowledged(&mut self, sequence: u64) -> impl AwaitedEnd {
        Acknowledged {
            end: &self.end,
            ask: Ask::acknowledged(sequence),
            wait: &mut self.waits.acked,
        }
    }
}

impl Condition for Acknowledged<'_> {
    type Output = ();

    fn check(&mut self) -> Option<()> {
        let is_known = fork::is_child() || self.end.check_for(&self.ask).is_some();
        is_known.then_some(())
    }

    fn ask(&mut self) {
        // The peer's engine was asked before (`missed`).
        let Self { end, ask, wait } = self;
        end.path.ask_for(end, ask, &mut wait.asked, true);
    }

    fn register(&mut self, waker: &Waker) {
        self.end.register(self.wait, waker);
    }

    fn leave(&mut self) {
        self.end.leave(self.wait);
    }
}

impl AwaitedEnd for Acknowledged<'_> {
    fn event_loops(&self) -> &[Arc<EventLoop>] {
        slice::from_ref(self.end.session.requests.event_loop())
    }

    fn poll_target(&self) -> PollTarget {
        self.end.session.poll_target()
    }

    fn missed(&mut self, waits: bool) {
        let end = self.end;
        match waits {
            true => end.path.ask_ahead(end, &self.ask),
            false => end.path.ask_in_passing(end, self.ask.acknowledged),
        }
    }
}

/// A wait for events of several ends, which looks at them round-robin.
#[derive(Debug, Default)]
pub struct Several {
    waits: Vec<Registration>,
    /// The end to look at first.
    next: usize,
    /// Number of calls that found an event at once.
    found: u32,
}

impl Several {
    /// Makes a wait that looks at the first end first.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of an end that has an event. If several have one, the next in the round
    /// counts. `awaited` returns the event to wait for at an end, each time the same.
    ///
    /// # Panics
    /// If there are no ends, or if ends of several nodes are given where callers turn the engine.
    #[track_caller]
    pub fn ready<E>(
        &mut self,
        ends: &mut [E],
        awaited: fn(&mut E) -> Awaited<'_>,
        patience: Patience,
    ) -> Result<usize, TimedOut> {
        let count = ends.len();
        assert!(count > 0, "there is nothing to wait for");
        self.waits.resize_with(count, Registration::default);
        let mut ready = AnyReady {
            several: self,
            ends,
            awaited,
        };
        if let Some(found) = ready.check() {
            let found_so_far = ready.several.found.wrapping_add(1);
            ready.several.found = found_so_far;
            if found_so_far.is_multiple_of(FOUND_PER_TURN) {
                ready.at(found, |end| {
                    let event_loops = end.event_loops().iter();
                    event_loops.for_each(|event_loop| event_loop.poll_all());
                });
            }
            return Ok(found);
        }
        let event_loop = ready.at(0, |end| end.event_loops()[0].clone());
        let (mut others, mut poll_target) = (Vec::new(), PollTarget::Memory);
        ready.for_each(|end| {
            for other in end.event_loops() {
                let is_known = |known: &Arc<EventLoop>| Arc::ptr_eq(known, other);
                if !is_known(&event_loop) && !others.iter().any(is_known) {
                    others.push(other.clone());
                }
            }
            poll_target = poll_target.max(end.poll_target());
            end.missed(matches!(patience, Patience::Until(_)));
        });
        assert!(
            event_loop.node.driver() != Driver::Caller || others.is_empty(),
            "ends of several nodes, whose engines are turned by callers"
        );
        let Patience::Until(deadline) = patience else {
            event_loop.poll_in_passing();
            return ready.check().ok_or(TimedOut);
        };
        wait_for_any((&event_loop, &others), deadline, poll_target, ready)
    }
}

/// The condition "one of the ends has an event".
struct AnyReady<'a, E> {
    several: &'a mut Several,
    ends: &'a mut [E],
    awaited: fn(&mut E) -> Awaited<'_>,
}

impl<E> AnyReady<'_, E> {
    /// Calls `act` with the condition of one end.
    fn at<R>(&mut self, number: usize, act: impl FnOnce(&mut dyn AwaitedEnd) -> R) -> R {
        match (self.awaited)(&mut self.ends[number]) {
            Awaited::Event(end) => act(end),
            Awaited::Acknowledgement(handle, sequence) => act(&mut Acknowledged {
                end: handle.end(),
                ask: Ask::acknowledged(sequence),
                wait: &mut self.several.waits[number],
            }),
        }
    }

    fn for_each(&mut self, mut act: impl FnMut(&mut dyn AwaitedEnd)) {
        for number in 0..self.ends.len() {
            self.at(number, &mut act);
        }
    }
}

impl<E> Condition for AnyReady<'_, E> {
    type Output = usize;

    fn check(&mut self) -> Option<usize> {
        let (first, count) = (self.several.next, self.ends.len());
        let found = (0..count)
            .map(|step| (first + step) % count)
            .find(|&number| self.at(number, |end| end.check().is_some()))?;
        self.several.next = found + 1;
        Some(found)
    }

    fn keep_nothing_back(&mut self) {
        self.for_each(|end| end.keep_nothing_back());
    }

    fn ask(&mut self) {
        self.for_each(|end| end.ask());
    }

    fn register(&mut self, waker: &Waker) {
        self.for_each(|end| end.register(waker));
    }

    fn leave(&mut self) {
        self.for_each(|end| end.leave());
    }
}
