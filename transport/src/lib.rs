//! The engine and fabrics below ibex's typed channels.
//!
//! From the top floor down: [`channel`] has the handles, [`runtime`] the threads and tasks that
//! turn the engine and wait for it, [`engine`] all sessions of a node and their turn,
//! [`connection`] one of them, [`endpoint`] the ends of channels, which handles and engine share,
//! [`node`] what a node tells of itself. A [`wire`] carries a session's frames, over a stream or
//! the queue pairs of [`rdma`]; data also goes through [`shared_memory`]. [`session`] is what all
//! of these know of a session. Below are the pure protocol ([`ibex_protocol`]), the rings
//! ([`ibex_ring`]) and the objects of RDMA ([`ibex_verbs`]).

pub mod channel;
mod clock;
pub mod connection;
mod counter;
pub mod endpoint;
pub mod engine;
pub mod node;
pub mod rdma;
pub mod runtime;
pub mod session;
pub mod shared_memory;
pub mod wire;
