//! Credit: how much a peer's engine can still take in.
//!
//! - [`session`]: the credit of one session, at both ends.
//! - [`broker`]: how an engine shares its receive memory between its sessions.
//! - [`reserved_buffer`]: the same where each frame takes a buffer of its own.

pub mod broker;
pub mod reserved_buffer;
pub mod session;
