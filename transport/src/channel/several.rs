//! Waiting at several ends at once for the first event.
//!
//! Each end has a waiting place, and all peers of a node together have another. When the thread is
//! about to sleep, it leaves its waker at each of these places, and takes all back when it is awake.
//! Nothing is polled meanwhile, and no other thread takes part.

use std::{fmt, sync::Arc, task::Waker};

use ibex_base::fork;
use ibex_protocol::format::control::Ask;
use ibex_ring::parking::{Condition, Patience, TimedOut};

use super::{ReceiveHandle, SendHandle};
use crate::{
    endpoint::send_wait::Registration,
    runtime::{Driver, EventLoop, Gathering, Looks, wait_for_any},
};

/// Where callers turn the engine, one of this many calls that find an event at once runs a turn. So
/// an end that always has an event does not keep other ends from getting theirs.
pub const FOUND_PER_TURN: u32 = 64;

/// Several ends, by number.
pub trait Ends {
    /// Returns the number of ends.
    fn count(&self) -> usize;
    /// Returns an end and the event to wait for there. Each call returns the same for a number.
    fn end(&mut self, number: usize) -> Awaited<'_>;
}

/// The event to wait for at an end.
#[derive(Debug)]
pub enum Awaited<'a> {
    /// A message, or the end of the channel.
    Message(&'a mut ReceiveHandle),
    /// The acknowledgement of the message with this sequence, or the fact that none will come.
    Acknowledgement(&'a SendHandle, u64),
    /// An event of any peer of a node, or the end of all of them.
    OfAnyPeer(&'a mut dyn OfAnyPeer),
}

/// Events of all peers of a node, as one of several things to wait for.
pub trait OfAnyPeer: fmt::Debug {
    /// Returns the place where events of peers wake waiters.
    fn gathering(&self) -> &Gathering;
    /// Returns whether every peer writes this process's memory.
    fn is_in_memory(&self) -> bool;
    /// Returns whether there is an event, which stays until it is taken. If the caller is
    /// `about_to_sleep`, peers without events keep their wakers.
    fn is_there(&mut self, about_to_sleep: bool) -> bool;
    /// Leaves a waker for events of every peer. A look follows.
    fn register(&mut self, waker: &Waker);
    /// Takes back the waker.
    fn leave(&mut self);
    /// Gives peers the news that costs no frame; see [`Condition::keep_nothing_back`].
    fn keep_nothing_back(&mut self);
}

impl Awaited<'_> {
    fn event_loop(&self) -> &Arc<EventLoop> {
        match self {
            Self::Message(handle) => handle.session().event_loop(),
            Self::Acknowledgement(handle, _) => handle.session().event_loop(),
            Self::OfAnyPeer(peers) => peers.gathering().runtime().first(),
        }
    }

    fn looks(&self) -> Looks {
        match self {
            Self::Message(handle) => handle.session().looks(),
            Self::Acknowledgement(handle, _) => handle.session().looks(),
            Self::OfAnyPeer(peers) => Gathering::looks(peers.is_in_memory()),
        }
    }

    fn is_there(&mut self, about_to_sleep: bool) -> bool {
        match self {
            Self::OfAnyPeer(peers) => peers.is_there(about_to_sleep),
            Self::Message(handle) => handle.is_ready(),
            Self::Acknowledgement(handle, sequence) => {
                let ask = Ask::acknowledged(*sequence);
                fork::is_child() || handle.end().look_for(&ask).is_some()
            }
        }
    }

    fn keep_nothing_back(&mut self) {
        match self {
            Self::Message(handle) => handle.keep_nothing_back(),
            Self::Acknowledgement(..) => {}
            Self::OfAnyPeer(peers) => peers.keep_nothing_back(),
        }
    }

    /// Asks the peer to report the event, if the peer is asked through shared memory and
    /// `in_memory` is true, or over a wire and it is false.
    fn ask(&self, wait: &mut Registration, in_memory: bool) {
        if let Self::Acknowledgement(handle, sequence) = self
            && handle.shares_memory() == in_memory
        {
            let ask = Ask::acknowledged(*sequence);
            handle.end().ask_for(&ask, &mut wait.asked);
        }
    }

    /// Asks the peer to report the event, for a caller that does not wait and comes again.
    fn ask_in_passing(&self) {
        if let Self::Acknowledgement(handle, sequence) = self {
            handle.end().ask_in_passing(*sequence);
        }
    }

    /// Leaves a waker. A look follows.
    fn register(&mut self, wait: &mut Registration, waker: &Waker) {
        match self {
            Self::Message(handle) => handle.register(waker),
            Self::Acknowledgement(handle, _) => handle.end().register(wait, waker),
            Self::OfAnyPeer(peers) => peers.register(waker),
        }
    }

    fn leave(&mut self, wait: &mut Registration) {
        match self {
            Self::Message(handle) => handle.leave(),
            Self::Acknowledgement(handle, _) => _ = handle.end().leave(wait),
            Self::OfAnyPeer(peers) => peers.leave(),
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
    /// counts.
    ///
    /// # Panics
    /// If there are no ends, or if ends of several nodes are given where callers turn the engine.
    #[track_caller]
    pub fn ready(&mut self, ends: &mut dyn Ends, patience: Patience) -> Result<usize, TimedOut> {
        let count = ends.count();
        assert!(count > 0, "there is nothing to wait for");
        if let Some(found) = self.look(ends, false) {
            self.found = self.found.wrapping_add(1);
            if self.found.is_multiple_of(FOUND_PER_TURN) {
                ends.end(found).event_loop().look_around();
            }
            return Ok(found);
        }
        let first = ends.end(0);
        let (event_loop, mut looks) = (first.event_loop().clone(), first.looks());
        for number in 1..count {
            let end = ends.end(number);
            assert!(
                event_loop.node.driver() != Driver::Caller
                    || Arc::ptr_eq(end.event_loop(), &event_loop),
                "ends of several nodes, whose engines are turned by callers"
            );
            looks = looks.max(end.looks());
        }
        for number in 0..count {
            if let Awaited::Message(handle) = ends.end(number) {
                handle.end().watch_open();
            }
        }
        let Patience::Until(deadline) = patience else {
            for number in 0..count {
                ends.end(number).ask_in_passing();
            }
            event_loop.poll_in_passing();
            return self.look(ends, false).ok_or(TimedOut);
        };
        self.waits.resize_with(count, Registration::default);
        // Over a wire, a look is useless before the peer's engine has got the question.
        self.ask(ends, false);
        let others = others(&event_loop, ends);
        let ready = Ready {
            several: self,
            ends,
            about_to_sleep: false,
        };
        let engines = (&event_loop, &others[..]);
        wait_for_any(engines, deadline, looks, ready)
    }

    fn look(&mut self, ends: &mut dyn Ends, about_to_sleep: bool) -> Option<usize> {
        let count = ends.count();
        let found = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|&number| ends.end(number).is_there(about_to_sleep))?;
        self.next = found + 1;
        Some(found)
    }

    fn ask(&mut self, ends: &mut dyn Ends, in_memory: bool) {
        for (number, wait) in self.waits.iter_mut().enumerate() {
            ends.end(number).ask(wait, in_memory);
        }
    }
}

/// Returns the engines of `ends` without `first`, each once.
fn others(first: &Arc<EventLoop>, ends: &mut dyn Ends) -> Vec<Arc<EventLoop>> {
    let mut others: Vec<Arc<EventLoop>> = Vec::new();
    for number in 1..ends.count() {
        let end = ends.end(number);
        let other = end.event_loop();
        let is_known = |known: &Arc<EventLoop>| Arc::ptr_eq(known, other);
        if !is_known(first) && !others.iter().any(is_known) {
            others.push(other.clone());
        }
    }
    others
}

/// The condition "one of the ends has an event".
struct Ready<'a> {
    several: &'a mut Several,
    ends: &'a mut dyn Ends,
    about_to_sleep: bool,
}

impl Condition for Ready<'_> {
    type Output = usize;

    fn look(&mut self) -> Option<usize> {
        self.several.look(self.ends, self.about_to_sleep)
    }

    fn keep_nothing_back(&mut self) {
        for number in 0..self.several.waits.len() {
            self.ends.end(number).keep_nothing_back();
        }
    }

    fn ask(&mut self) {
        // Engines keep the question until it is answered.
        self.several.ask(self.ends, true);
    }

    fn register(&mut self, waker: &Waker) {
        self.about_to_sleep = true;
        for (number, wait) in self.several.waits.iter_mut().enumerate() {
            self.ends.end(number).register(wait, waker);
        }
    }

    fn leave(&mut self) {
        self.about_to_sleep = false;
        for (number, wait) in self.several.waits.iter_mut().enumerate() {
            self.ends.end(number).leave(wait);
        }
    }
}
