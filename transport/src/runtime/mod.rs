//! The runtime: who runs the engines, and where threads wait for them.
//!
//! A node has one engine or several. An engine is a value behind one lock; nothing in it belongs
//! to a thread. Whoever waits turns it: the threads that wait in calls and, under [`Driver::Threads`], the I/O thread
//! while there are none. There is one place to sleep: the epoll set, by one thread at a
//! time (the *leader*); all others park on a futex of their own and are woken by whoever
//! made their wish come true.

use ibex_base::sync::Asymmetry;

mod after_turn;
mod closing;
mod draining;
mod event_loop;
mod gathering;
mod host;
mod keeper;
mod next_event;
mod own_thread;
mod reminder;
#[expect(
    clippy::module_inception,
    reason = "the type `Runtime` has a file of its own"
)]
mod runtime;
mod task;
pub(crate) mod waiting;
mod yielding;

pub use event_loop::EventLoop;
pub use gathering::Gathering;
pub use runtime::{EngineStats, Runtime};
pub use task::{CloseWait, Step};
pub(crate) use waiting::wait_for_any;

pub use crate::node::{Driver, RuntimeConfig};
pub(crate) use crate::node::{Driving, Looks, NodeState};

/// Returns whether doorbells cost nothing but `membarrier` at the sleeper; else every publisher pays
/// a fence.
#[must_use]
pub fn has_membarrier() -> bool {
    Asymmetry::of_process() == Asymmetry::Membarrier
}
