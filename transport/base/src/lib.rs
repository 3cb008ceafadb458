//! The ground floor of ibex's transport: every other crate knows it, and it knows none of them.
//!
//! - [`Address`]: an IP address with a port, or a vsock address.
//! - [`BackOff`]: pauses between attempts that fail.
//! - [`fork`]: whether this process is a fork of the one that made the nodes.
//! - [`log_limit`]: how often the log repeats warnings of one kind.
//! - [`field`]: fields of messages, and structs that are written as their fields.
//! - [`random`]: random bytes from the kernel.
//! - [`sync`]: atomics and locks that are std's, or loom's in a model; an asymmetric barrier,
//!   and what is built on it alone.
//! - [`threads`]: threads that the library makes.
//! - [`Workers`]: threads for work that takes too long for a turn.
//! - [`tls`]: who a peer is, how TLS fails, and what a connection needs of TLS.
//! - [`turn`]: whether the calling thread runs a turn of an engine, for assertions.
//! - [`Escaped`]: text that a peer chose, for logs and errors.
//! - [`Fabric`]: what carries a session.
//! - [`Counted`] and [`Rounded`]: counts and times, as logs and errors tell them.
//! - [`call_foreign`]: calls of a program's code on threads of ibex.
//! - [`debug_as_display`](crate::debug_as_display!): errors whose `Debug` is their `Display`.
//! - [`debug_fields`](crate::debug_fields!): a `Debug` that shows some of a value.

mod address;
mod back_off;
mod debug_as_display;
mod debug_fields;
mod escaped;
mod fabric;
pub mod field;
mod foreign;
pub mod fork;
pub mod log_limit;
mod quantity;
pub mod random;
pub mod sync;
pub mod threads;
pub mod tls;
mod tmpfs;
pub mod turn;
mod workers;

pub use address::Address;
pub use back_off::BackOff;
pub use escaped::Escaped;
pub use fabric::Fabric;
pub use foreign::call_foreign;
pub use quantity::{Counted, Rounded};
pub use tmpfs::is_on_tmpfs;
pub use workers::{Job, NoThread, Workers};
