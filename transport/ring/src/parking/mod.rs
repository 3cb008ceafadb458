//! Protocols by which threads go to sleep without losing a wake-up, apart from what they sleep on.
//!
//! Each protocol here wins one race by an order of steps: say that we are about to sleep, look once
//! more, sleep. The protocols know no device, no engine and no descriptor, so the same code runs in
//! the driver, over a completion queue, and inside loom.

#![forbid(unsafe_code)]

mod claimed;
mod condition;
mod future;
mod leadership;
mod parker;
mod patience;
mod ready_set;
mod rung;
mod waiter;
mod wakers;

pub mod bell;

pub use bell::{Bell, BellLease, RungEnd};
pub use claimed::Claimed;
pub use condition::{AtSlot, Condition, block, poll, poll_again, sleep};
pub use future::future;
pub use leadership::{Lead, Leadership};
pub use parker::{Parker, thread_waker};
pub use patience::{Patience, TimedOut};
pub use ready_set::ReadySet;
pub use rung::Rung;
pub use waiter::{Ticket, WaitSlot};
pub use wakers::{Wakers, waker_of};
