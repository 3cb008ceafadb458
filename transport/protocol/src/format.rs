//! The bytes of frames, records and control messages.
//!
//! - [`frame`], [`control`]: a frame on the wire, and the control message that it may carry.
//! - [`frame_check`]: the checksums that tell of damage on the way.
//! - [`record`]: a message in a ring.
//! - [`message_version`]: the message type that both ends of a channel know.
//! - `eager_block_id`, `remote_memory`: the memory that a peer may write or read, as messages name it.
//! - [`counters`], [`channel_window`]: how much of a channel the receiving application holds.
//! - [`trace_context`]: the place of a message or a call in a trace.

pub mod channel_window;
pub mod control;
pub mod counters;
pub(crate) mod eager_block_id;
pub mod frame;
pub mod frame_check;
pub mod in_segment;
mod io_error;
pub mod message_extension;
pub mod message_version;
pub mod record;
pub(crate) mod remote_memory;
pub mod trace_context;
