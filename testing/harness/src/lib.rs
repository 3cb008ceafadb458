//! Tools that measure and disturb ibex. For measuring: the raw limits of this machine, a clock, a
//! histogram, the payload pattern and the pair of processes. For disturbing: a proxy, a link,
//! processes that are watched over, and numbers from a seed.
//!
//! This crate does not know ibex. The same pattern, clock, histogram, cores and warm-up serve the
//! raw limits and the subjects that are compared to them, so a ratio shows only the cost of the
//! library.
//!
//! A program that measures calls [`pair::run_if_peer`] first in its `main`: the harness starts the
//! same program again as the second process of a pair.

#[cfg(feature = "tls")]
pub mod authority;
pub mod check;
pub mod clock;
pub mod cores;
pub mod draw;
mod error;
pub mod events;
pub mod far_limit;
#[cfg(feature = "tls")]
pub mod fixed_random;
mod foreign;
pub mod histogram;
pub mod interleave;
pub mod job;
pub mod libraries;
pub mod limit;
pub mod link;
mod mapping;
pub mod meter;
pub mod network;
pub mod pair;
pub mod payload;
pub mod perftest;
pub mod port_counters;
pub mod process;
pub mod proxy;
#[cfg(feature = "verbs")]
mod queue_pair;
mod raw_shm;
mod raw_tcp;
#[cfg(feature = "tls")]
mod raw_tls;
#[cfg(feature = "verbs")]
mod raw_verbs;
pub mod regime;
pub mod resources;
pub mod row;
#[cfg(feature = "tls")]
pub mod run_keys;
#[cfg(feature = "verbs")]
mod verbs_context;
#[cfg(feature = "verbs")]
mod verbs_objects;
pub mod verbs_port;
mod wait_until;
pub mod wakes;

pub use error::Error;
pub use wait_until::wait_until;
