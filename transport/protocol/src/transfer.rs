//! Messages that have memory of their own.
//!
//! - [`rendezvous`]: the sender announces the message, the receiver grants memory for it.
//! - [`eager_write`]: the sender writes the message into a block that was granted before.

pub mod eager_write;
pub mod rendezvous;
