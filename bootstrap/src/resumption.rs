//! Resumption: a session whose wires broke, and its next connection.
//!
//! Rules:
//!
//! - Both ends prove that they have the session's secret, each in its own role and over both Hellos
//!   of this connection, so that no proof serves twice.
//! - Each connection of a session begins an epoch, and epochs grow, so that of two connections the
//!   later one counts at both ends.
#![forbid(unsafe_code)]

mod resumable;
mod ticket;

pub use resumable::{RegisteredSession, Resumable, ResumableSessions};
pub use ticket::ResumeTicket;
