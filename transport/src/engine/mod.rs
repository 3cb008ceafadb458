//! The engine's pure state: it does no I/O, reads no clock and owns no thread.
//!
//! Facts come in through `handle_*` with the time they became known, actions go
//! out through `poll_*`, which is drained until it answers `None`. Whatever moves
//! bytes (sockets, queue pairs, the simulated fabric) is a client of these types
//! and never the other way round, so every rule here is tested without a device.
//!
//! - [`frame`], [`control`]: what stands on the wire; [`frame_check`]: how damage to it is
//!   noticed.
//! - [`message_version`]: which message type both ends of a channel know.
//! - [`record`]: what stands in a ring.
//! - [`counters`], [`channel_window`]: what the application still holds.
//! - [`session_credit`]: what the engine of the other end can still take in.
//! - [`credit_broker`]: who of all the sessions of an engine may send how much of that.
//! - [`reserved_buffer`]: how they speak of it where every frame takes a buffer.
//! - [`carriage`]: what the wire below makes of frames.
//! - [`session`]: one session's channels, and which frame goes next.
//! - [`timer`], [`id_map`]: deadlines and ends as tables.

pub mod carriage;
pub mod channel_window;
pub mod control;
pub mod counters;
pub mod credit_broker;
pub mod frame;
pub mod frame_check;
pub mod id_map;
pub mod landing;
pub mod large;
pub mod message_version;
pub mod record;
pub mod reserved_buffer;
pub mod session;
pub mod session_credit;
pub mod signal_cadence;
pub mod timer;

mod receive_channel;
mod send_channel;
