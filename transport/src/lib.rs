//! The engine and fabrics below ibex's typed channels.
//!
//! From the top floor down:
//!
//! - [`channel`]: the handles.
//! - [`runtime`]: the threads and tasks that turn the engines and wait for them.
//! - [`engine`]: the sessions of a node, and the engine's turn.
//! - [`connection`]: one session in the engine.
//! - [`endpoint`]: the ends of channels, which handles and engine share.
//! - [`node`]: a node's reports.
//! - [`wire`]: the carriers of a session's frames, over a stream or the queue pairs of [`rdma`].
//! - [`shared_memory`]: the segments through which data goes on one host.
//! - [`session`]: the facts of a session that all modules above share.
//!
//! Below are the pure protocol ([`ibex_protocol`]), the rings ([`ibex_ring`]) and the objects of
//! RDMA (`ibex-verbs`).

// A build without RDMA does not use all that queue pairs use.
#![cfg_attr(not(any(test, feature = "verbs")), allow(dead_code))]

pub mod channel;
mod clock;
pub mod connection;
mod counter;
pub mod endpoint;
pub mod engine;
pub mod histogram;
pub mod node;
#[cfg(any(test, feature = "verbs"))]
pub mod rdma;
#[cfg(not(any(test, feature = "verbs")))]
#[path = "rdma/absent.rs"]
pub mod rdma;
pub mod runtime;
pub mod session;
pub mod shared_memory;
pub mod wire;
