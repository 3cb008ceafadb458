//! Shared memory: the fabric between two processes of one host.
//!
//! The sender of a channel owns its ring and writes it. The receiver maps it read-only and reads in
//! place. Each side publishes its counters in a control segment that the other only reads.
//! Descriptors travel over a Unix socket; a second socket carries wake-ups. No object has a name,
//! so none outlives the two processes.

pub mod message;

mod aside;
mod bells;
mod control_segment;
mod control_segments;
mod fd_socket;
mod lingering;
mod message_segment;
mod message_segment_pool;
mod passed_slice;
mod ring_segment;
mod sealed;
mod unix_wires;

pub use aside::{PassedFd, SessionSocket, close_unix, is_held_up};
pub use bells::{BellRead, Bells};
pub use control_segment::{
    ControlBlock, PeerControlSegment, SegmentShare, most_segments, segment_bytes,
};
pub use control_segments::{ControlSegments, Provided, SegmentReader};
pub use fd_socket::{FdSocket, FdSocketError, MAX_MESSAGE_BYTES, Outgoing, Packet, PacketRead};
pub use message_segment::{MESSAGE_SLOTS, MessageSegment, MessageSlots, PassedSegment};
pub use message_segment_pool::{MessageSegmentPool, MessageSlot, RegionSlot};
pub(crate) use passed_slice::PassedSlice;
pub use ring_segment::RingSegment;
pub use sealed::SegmentRefused;
pub(super) use sealed::check_kind;
pub use unix_wires::UnixWires;

use ibex_ring::memory::MemoryError;

/// Makes a memory file by every step that sessions over shared memory take, and drops it.
///
/// # Errors
/// [`MemoryError`] with the step that the kernel or a sandbox refused.
pub fn probe() -> Result<(), MemoryError> {
    control_segment::ControlSegment::create(rustix::param::page_size(), false).map(drop)
}
