//! The handles of channels, and the waits of threads and tasks for them.
//!
//! [`SendHandle`] encodes into the ring of its end. [`ReceiveHandle`] reads records in place, and
//! counts the guards that it has handed out. The other side of the ring is the peer process, if it
//! shares memory, and otherwise the engine. Both publish [their counters](ibex_ring::end_status)
//! and ring the same doorbells, so the path of a message is the same for both.

mod group;
pub mod message;
mod opening;
mod payload;
pub mod receive_handle;
pub mod reservation;
pub mod send_handle;
mod several;
mod shared_sender;
mod task;

pub use crate::session::{ChannelError, ChannelFailure, EndLabel, FailureReason, Full};
pub use group::{
    GroupFailure, GroupMessage, InTheWay, LossReason, MemberCounts, Parted, QuorumFailure,
    SendGroup, Votes, WaitingTask, WhenFull,
};
pub use message::RawMessage;
pub use receive_handle::ReceiveHandle;
pub use reservation::RawReservation;
pub use send_handle::{Abort, SendHandle, SliceMessage};
pub use several::{Awaited, AwaitedEnd, FOUND_PER_TURN, Several};
