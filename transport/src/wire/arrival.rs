//! Frames in the memory where they arrived, and the reasons to refuse one.

use std::{
    mem,
    ops::Range,
    ptr::{self, NonNull},
};

use ibex_protocol::{
    format::{frame::FrameHeader, frame_check::DamagedFrame},
    session::{Arrival, PeerMisbehaved},
    transfer::rendezvous::Chunk,
};
use ibex_ring::memory::{BlockLease, BufferLease, MemoryError};

use super::{Frames, Tools, stream::inbound::Inbound};

/// Records of one frame, in the memory where they arrived.
pub(crate) struct Arrived<M> {
    /// The first record.
    pub(crate) base: NonNull<u8>,
    /// The bytes of all records.
    pub(crate) bytes: usize,
    /// The sequence number of the last record.
    pub(crate) last_sequence: u64,
    /// Time of arrival, in nanoseconds since 1970; 0 if it is unknown.
    pub(crate) time: u64,
    /// The memory that the records lie in. It becomes a [`FrameMemory`] when it is handed on;
    /// earlier, its drop would force moves from place to place.
    pub(crate) memory: M,
    /// Number of refills of the arrival memory so far.
    pub(crate) refills: u64,
    /// Bytes of a shared block that the frame takes; 0 if each frame has a buffer of its own.
    pub(crate) of_block: usize,
    /// Too little arrival memory is left for this frame to stay in it.
    pub(crate) is_scarce: bool,
}

impl Arrived<BlockLease> {
    /// Returns the records at `offset`, `bytes` long, of the frame that `inbound` hands on next.
    #[inline]
    pub(super) fn in_block(
        inbound: &Inbound,
        offset: usize,
        bytes: usize,
        last_sequence: u64,
    ) -> Self {
        let block = inbound.block().clone();
        Self {
            // SAFETY: the frame is complete and inside the block.
            base: unsafe { block.base().add(inbound.parsed() + offset) },
            bytes,
            last_sequence,
            time: 0,
            memory: BlockLease::new(block),
            refills: inbound.refills(),
            of_block: bytes,
            is_scarce: false,
        }
    }
}

/// Takes in a complete frame. `records` makes the value to hand on from the records at a place in
/// the frame, up to a sequence number.
#[inline(always)]
pub(super) fn take_whole<F: Frames, M: Into<FrameMemory>>(
    frame: &[u8],
    time: u64,
    records: impl FnOnce(Range<usize>, u64) -> Arrived<M>,
    frames: &mut F,
    tools: &mut Tools,
) -> Result<(), FrameRefusal> {
    let cut = |length| PeerMisbehaved::CutFrame {
        arrived: frame.len() as u64,
        length,
    };
    let header = FrameHeader::parse(frame)
        .map_err(PeerMisbehaved::from)?
        .ok_or(cut(0))?;
    if !(header.length as usize..=header.padded_length()).contains(&frame.len()) {
        return Err(cut(header.length).into());
    }
    let frame = &frame[..header.length as usize];
    match frames.session().handle_frame(&header, frame, 0)? {
        Arrival::Nothing | Arrival::Unwanted => {}
        Arrival::Records {
            end,
            offset,
            bytes,
            first_sequence,
            records: count,
        } => {
            let last = first_sequence + count - 1;
            frames.records(end, records(offset..offset + bytes, last), tools)?;
            frames.blocks_done(time);
        }
        Arrival::Chunk {
            end,
            chunk,
            complete,
        } => {
            let until = chunk.offset + chunk.bytes as u64;
            frames.chunk_moves(end, chunk.sequence, until);
            place_chunk(end, chunk, &frame[header.body_offset()..], frames);
            if complete {
                frames.chunk_done(end, time);
            }
        }
        Arrival::Written { end, .. } => {
            frames.counters().rendezvous_received.add(1);
            frames.chunk_done(end, time);
        }
    }
    frames.events();
    Ok(())
}

#[inline(never)]
fn place_chunk<F: Frames>(end: u32, chunk: Chunk, body: &[u8], frames: &F) {
    // There is no place if the handle is gone by now.
    if let Some(place) = frames.place(end, chunk.sequence, chunk.offset, body.len()) {
        // SAFETY: this is the chunk's place in memory that was granted for it and that no thread
        // reads before the message is complete. The frame lies in other memory.
        unsafe {
            ptr::copy_nonoverlapping(body.as_ptr(), place.as_ptr(), body.len());
        }
        frames.counters().bytes_copied.add(body.len() as u64);
    }
}

/// Counts the times at which frames begin to wait for credit and stop waiting.
pub(super) fn note_credit<F: Frames>(waited: &mut bool, any_went: bool, frames: &mut F) {
    let waits = !any_went && frames.session().is_out_of_credit();
    match (mem::replace(waited, waits), waits) {
        (false, true) => frames.counters().credit_is_out(),
        (true, false) => frames.counters().credit_is_there(),
        _ => {}
    }
}

/// The memory that keeps a frame's bytes unchanged.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its drop")]
pub(crate) enum FrameMemory {
    /// A block that other frames lie in as well.
    Block(BlockLease),
    /// A receive buffer that holds this frame only.
    Buffer(BufferLease),
}

impl From<BlockLease> for FrameMemory {
    #[inline]
    fn from(lease: BlockLease) -> Self {
        Self::Block(lease)
    }
}

impl From<BufferLease> for FrameMemory {
    #[inline]
    fn from(lease: BufferLease) -> Self {
        Self::Buffer(lease)
    }
}

/// The reason why a frame could not be handed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameRefusal {
    #[error("it broke the protocol: {0}")]
    Peer(#[from] PeerMisbehaved),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("bytes were damaged on the way from it: {0}")]
    Damage(#[from] DamagedFrame),
}
