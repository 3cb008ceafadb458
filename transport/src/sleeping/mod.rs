//! How threads go to sleep without losing a wake-up, apart from what they sleep on.
//!
//! Each protocol here is one race, won by an order of steps: say that we are about to
//! sleep, look once more, sleep. They know no device, no engine and no descriptor, so the
//! same code runs in the driver, over a completion queue, and inside loom.

#![forbid(unsafe_code)]

mod armed_queue;
mod leadership;

pub use armed_queue::{ArmedQueue, EventQueue, Slept};
pub use leadership::{Lead, Leadership};
