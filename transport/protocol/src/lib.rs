//! The protocol of ibex's channels as pure state: it does no I/O, reads no clock and owns no
//! thread.
//!
//! Facts come in through `handle_*`, with the time at which they became known. Actions go out
//! through `poll_*`, which the host drains until it answers `None`. The host moves the bytes: over
//! sockets, queue pairs, shared memory, or a simulated network. The host depends on this crate and
//! never the other way round, so every rule here is tested without a device.
//!
//! - [`format`](mod@format): the bytes of frames, records and control messages, and the checksums over them.
//! - [`session`]: the channels of one session, and which frame goes next.
//! - [`credit`]: how much the peer's engine can still take in, and how it shares that between
//!   sessions.
//! - [`transfer`]: messages that have memory of their own.
//! - [`framing`]: the limits that a wire sets to frames.
//! - [`signal_cadence`]: which work requests ask for a completion.
//! - [`timer`], [`id_map`]: deadlines, and the ends of channels, as tables.
#![forbid(unsafe_code)]

pub mod credit;
pub mod format;
pub mod framing;
pub mod id_map;
pub mod session;
pub mod signal_cadence;
pub mod timer;
pub mod transfer;
