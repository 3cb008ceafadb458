//! The runtime: the threads and tasks that run the engines, and the waits for them.
//!
//! A node has one engine or several. An engine is a value behind one lock; nothing in it belongs to
//! a thread. Waiting threads turn it: those that wait in calls and, under [`Driver::Threads`], the
//! I/O thread while no call waits. One thread at a time, the *leader*, sleeps in the epoll set. All
//! others park, each on a futex of its own, and the thread that makes their condition hold wakes
//! them.

use ibex_base::sync::Asymmetry;

mod after_turn;
mod brief_polls;
mod closing;
mod draining;
mod event_loop;
mod gathering;
mod inbox;
mod keeper;
mod next_event;
mod own_thread;
mod reminder;
mod requests;
#[expect(
    clippy::module_inception,
    reason = "the type `Runtime` has a file of its own"
)]
mod runtime;
mod task;
mod unpolled;
pub(crate) mod waiting;
mod wake_ups;
mod yielding;

pub use brief_polls::BriefPolls;
pub use event_loop::EventLoop;
pub use gathering::Gathering;
pub use runtime::{EngineCounts, Runtime};
pub use task::{Step, Steps};
pub(crate) use waiting::wait_for_any;
pub use wake_ups::WakeUps;

pub(crate) use crate::node::{Driving, NodeState};
pub use crate::{
    node::{Driver, PollTarget, RuntimeConfig},
    wire::{Rearm, Watcher},
};

/// Returns whether doorbells cost only a membarrier(2) of the sleeper. Otherwise every publisher
/// pays for a fence.
#[must_use]
pub fn has_membarrier() -> bool {
    Asymmetry::of_process() == Asymmetry::Membarrier
}
