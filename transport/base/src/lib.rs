//! The ground floor of ibex's transport: every other crate knows it, and it knows none of them.
//!
//! - [`fork`]: whether this process is a fork of the one that made the nodes.
//! - [`sync`]: atomics and locks that are std's, or loom's in a model; an asymmetric barrier,
//!   and what is built on it alone.
//! - [`debug_as_display`](crate::debug_as_display!): errors whose `Debug` is their `Display`.

mod debug_as_display;
pub mod fork;
pub mod sync;
