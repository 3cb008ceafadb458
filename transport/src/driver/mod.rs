//! Who runs the engine, and where threads wait for it.
//!
//! An engine is a value behind one lock; nothing in it belongs to a thread. Whoever waits
//! turns it: the threads that wait in calls and, under [`Driver::Threads`], the I/O thread
//! while there are none. There is one place to sleep: the epoll set, by one thread at a
//! time (the *leader*); all others park on a futex of their own and are woken by whoever
//! made their wish come true.

use std::time::{Duration, Instant};

use crate::ring::Asymmetry;

mod carrier;
mod close_report;
mod control_thread;
mod engine;
mod events;
mod gathering;
mod keeper;
mod memory_wanted;
mod peer_description;
mod runtime;
mod session_counters;
mod session_shared;
mod session_stats;
mod waiting;
mod yielding;

pub use crate::fabric::link::{
    Attempt, LinkStats, Reconnection, Redial, RedialError, RewiringTerms, Ways,
};
pub use close_report::{CloseReport, Undelivered};
pub use engine::{Admission, ControlSource, Incoming};
pub(crate) use events::EventQueue;
pub use events::{Event, Stalled, What};
pub use gathering::Gathering;
pub(crate) use memory_wanted::{MemoryWanted, Purpose};
pub use peer_description::PeerDescription;
pub use runtime::{Runtime, RuntimeConfig};
pub(crate) use session_counters::{Counter, SessionCounters};
pub use session_shared::SessionShared;
pub use session_stats::SessionStats;
pub(crate) use waiting::Looks;

pub(crate) use engine::{Context, Tools, Wire, answer_if_rung};

/// Who runs the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// Calls that wait, and an I/O thread of the node while none does. Everything that the
    /// documentation promises to happen by itself happens under this driver.
    ///
    /// What is sent goes out at once where a thread sleeps for the node, be it in a call or
    /// the I/O thread; in the sender's next call that waits; or when the I/O thread has seen
    /// that nobody waits any more, which takes up to 2 ms, and up to 8 ms where more threads
    /// want to run than there are cores.
    #[default]
    Threads,
    /// Whoever calls: no thread is started, and between calls nothing moves but what the
    /// kernel moves.
    ///
    /// `send` publishes and transmits nothing, except that it runs one turn when 32 KiB
    /// are queued (or half the window, if that is less). `flush`, `poll` and blocking
    /// calls run turns; receiving calls take what has already arrived without a turn and
    /// run one when nothing is there. Computing for a minute is legal and ends no session.
    Caller,
}

/// Who may sleep for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driving {
    /// The node's calls, and nobody between them.
    Callers,
    /// Threads that wait in calls, and the I/O thread while there are none.
    Waiters,
    /// The I/O thread alone, which has cores of its own.
    Thread,
}

impl Driving {
    fn of(config: &RuntimeConfig) -> Self {
        match config.driver {
            Driver::Caller => Driving::Callers,
            Driver::Threads if config.cores.is_empty() => Driving::Waiters,
            Driver::Threads => Driving::Thread,
        }
    }
}

/// Whether doorbells cost nothing but `membarrier` at who sleeps; else everyone pays a fence.
#[must_use]
pub fn has_membarrier() -> bool {
    Asymmetry::of_process() == Asymmetry::Membarrier
}

/// How a blocking call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Never sleeps: the lowest latency, and one core per waiting thread.
    BusyPoll,
    /// Spins for so long, giving the core away in between, then sleeps. Sleeps at once for a
    /// while, up to half a second, after another thread has kept the core for a millisecond.
    Adaptive {
        /// How long, not counting what time other threads take on the core. Default: 50 µs,
        /// about what a sleep and a wake-up cost together; zero where a spinning thread
        /// would keep the core from the thread that it waits for.
        spin: Duration,
    },
    /// Sleeps at once.
    Event,
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until then, or for ever.
    Until(Option<Instant>),
}

impl Patience {
    /// As long as it takes.
    pub const FOREVER: Self = Patience::Until(None);

    /// For so long from now.
    #[must_use]
    pub fn at_most(timeout: Duration) -> Self {
        Patience::Until(Instant::now().checked_add(timeout))
    }
}

/// The time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

/// Something a thread can wait for.
pub trait Condition {
    /// What it is when it has come true.
    type Output;

    /// Looks whether it is there. Cheap: called again and again while spinning.
    fn look(&mut self) -> Option<Self::Output>;

    /// Whether a look may find it, as far as the cheapest of signs tells; a look comes now
    /// and then in any case.
    fn glance(&mut self) -> bool {
        true
    }

    /// The first looks have found nothing: what costs nobody a frame is told now, as the other
    /// side may be waiting for just that.
    fn keep_nothing_back(&mut self) {}

    /// Tells the other side what is waited for, so that it does not keep it back. Called
    /// when looking has not helped for a while, and again from time to time.
    fn ask(&mut self) {}

    /// The caller is about to sleep: arms what must wake it. A look follows.
    fn arm(&mut self) {}

    /// The caller does not wait any more, or not for now.
    fn disarm(&mut self) {}
}

impl<T, F: FnMut() -> Option<T>> Condition for F {
    type Output = T;

    fn look(&mut self) -> Option<T> {
        self()
    }
}
