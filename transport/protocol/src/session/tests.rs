//! The reaction of a session to each frame: one that is due, one that came before, one that comes
//! again and one that comes too early; and to every order of opening and closing. (What two
//! sessions make of each other under faults is the simulated fabric's.)

mod buffers;
mod changes;
mod credit;
mod ends;
mod goodbye;
mod large;
pub(super) mod peer;
mod pulling;
mod records;
mod resuming;
