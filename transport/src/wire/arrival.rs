//! Frames where they arrived, and the reasons to refuse one.

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

/// Records of one frame where they arrived.
pub(crate) struct Arrived<M> {
    /// The first record.
    pub(crate) base: NonNull<u8>,
    /// The bytes of all records.
    pub(crate) bytes: usize,
    /// The sequence number of the last record.
    pub(crate) last_sequence: u64,
    /// Time of arrival, in nanoseconds since 1970; 0 if it is unknown.
    pub(crate) time: u64,
    /// The memory that they lie in. It becomes a [`FrameMemory`] where it is handed on: before,
    /// it would be moved from place to place for the sake of its drop.
    pub(crate) memory: M,
    /// How often the arrival memory was filled anew.
    pub(crate) refills: u64,
    /// Bytes of a shared block that the frame takes: 0 where each frame has a buffer of its own.
    pub(crate) of_block: usize,
    /// There is too little of that memory left to be held on to.
    pub(crate) is_scarce: bool,
}

impl Arrived<BlockLease> {
    /// Returns records of the frame that `inbound` hands on next: the `bytes` at its `offset`.
    #[inline]
    pub(super) fn in_block(
        inbound: &Inbound,
        offset: usize,
        bytes: usize,
        last_sequence: u64,
    ) -> Self {
        let block = inbound.block().clone();
        Self {
            // SAFETY: the frame is whole and inside the block.
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

/// Takes in a frame that is here as a whole. `records` makes the value to hand on from the records
/// at a place of it, up to a sequence number.
#[inline(always)]
pub(super) fn take_whole<F: Frames, M: Into<FrameMemory>>(
    frame: &[u8],
    time: u64,
    records: impl FnOnce(Range<usize>, u64) -> Arrived<M>,
    frames: &mut F,
    tools: &mut Tools,
) -> Result<(), Fault> {
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
    // Without a place the handle is gone since.
    if let Some(place) = frames.place(end, chunk.sequence, chunk.offset, body.len()) {
        // SAFETY: the chunk's place in memory that was granted for it and that nobody
        // reads before it is complete; the frame is elsewhere.
        unsafe {
            ptr::copy_nonoverlapping(body.as_ptr(), place.as_ptr(), body.len());
        }
        frames.counters().bytes_copied.add(body.len() as u64);
    }
}

/// Counts when frames begin to wait for credit, and when they do no more.
pub(super) fn note_credit<F: Frames>(waited: &mut bool, any_went: bool, frames: &mut F) {
    let waits = !any_went && frames.session().is_out_of_credit();
    match (mem::replace(waited, waits), waits) {
        (false, true) => frames.counters().credit_is_out(),
        (true, false) => frames.counters().credit_is_there(),
        _ => {}
    }
}

/// The memory that keeps a frame's bytes as they are.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its drop")]
pub(crate) enum FrameMemory {
    /// A block that other frames lie in as well.
    Block(BlockLease),
    /// A receive buffer of the frame's own.
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
pub(crate) enum Fault {
    #[error("it broke the protocol: {0}")]
    Peer(#[from] PeerMisbehaved),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("bytes were damaged on the way from it: {0}")]
    Damage(#[from] DamagedFrame),
}
