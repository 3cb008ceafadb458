//! Arrival memory of one connection: a block that the socket is read into and in which frames are
//! read in place.
//!
//! Rules:
//!
//! 1. Bytes of the block below `filled` are written once and then only read; the socket is read
//!    into the bytes after them. So frames that were handed on stay unchanged.
//! 2. Offsets in the block equal the stream's position modulo 64, so that the padding
//!    that the sender computed aligns payloads here.
//! 3. When no frame of the block is held any more, or its end is near, reading continues at the
//!    front of this or another block. An incomplete frame is moved there, and counted.

use std::{ptr, slice, sync::Arc};

use ibex_protocol::format::{
    frame::{BLOCK_ALIGNMENT, MAX_FRAME_BYTES},
    frame_check::{CHECK_BYTES, Coverage},
};
use ibex_ring::memory::{Block, BlockPool, MemoryError};

/// The block being read into.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// `None` while the connection is silent; [`make_room`](Self::make_room) gets one.
    block: Option<Arc<Block>>,
    /// Offset up to which bytes have arrived.
    filled: usize,
    /// Offset up to which frames were handed on.
    parsed: usize,
    /// Number of blocks that were begun.
    refills: u64,
    /// A large message's chunk that is being read directly into its place.
    pub(crate) chunk: Option<ChunkInProgress>,
    /// Bytes of an unwanted body, or of a frame's fill, to be skipped.
    pub(crate) skip: usize,
    /// Frames that were handed on.
    pub(crate) frames: u64,
}

/// A large message's chunk that is being read into its place.
#[derive(Debug)]
pub(crate) struct ChunkInProgress {
    /// The receiving end.
    pub(crate) end: u32,
    /// The message.
    pub(crate) sequence: u64,
    /// Place of the chunk's first byte in the message.
    pub(crate) offset: u64,
    /// Length of the chunk in bytes, arrived or not.
    pub(crate) bytes: usize,
    /// Bytes still to come.
    pub(crate) left: usize,
    /// Zeros after the chunk that fill the frame.
    pub(crate) fill: usize,
    /// True if this is the message's last chunk.
    pub(crate) complete: bool,
    /// Extent that the chunk's check covers, and the expected value.
    pub(crate) check: (Coverage, u32),
}

impl ChunkInProgress {
    /// Returns the next byte's place in the message.
    pub(crate) fn next(&self) -> u64 {
        self.offset + (self.bytes - self.left) as u64
    }
}

impl Inbound {
    /// Returns whether a frame has arrived in part.
    pub(crate) fn is_in_frame(&self) -> bool {
        self.chunk.is_some() || self.skip > 0 || !self.unparsed().is_empty()
    }

    /// Returns the block, once [`make_room`](Self::make_room) has got one.
    pub(crate) fn block(&self) -> &Arc<Block> {
        let block = self.block.as_ref();
        block.expect("room was made before anything could arrive")
    }

    pub(crate) fn refills(&self) -> u64 {
        self.refills
    }

    /// Returns the place in the block where the next frame begins.
    pub(crate) fn parsed(&self) -> usize {
        self.parsed
    }

    /// Returns the bytes that have arrived and are not handed on.
    pub(crate) fn unparsed(&self) -> &[u8] {
        let Some(block) = &self.block else { return &[] };
        // SAFETY: in bounds (`parsed <= filled <= len`), written, and never written
        // again while this block is current (rule 1).
        unsafe {
            let start = block.base().add(self.parsed);
            slice::from_raw_parts(start.as_ptr(), self.filled - self.parsed)
        }
    }

    /// Marks `bytes` as handed on.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.parsed += bytes;
        debug_assert!(self.parsed <= self.filled);
    }

    /// Returns the memory to read the socket into, at most `limit` bytes.
    pub(crate) fn free(&mut self, limit: usize) -> &mut [u8] {
        let block = self.block();
        let bytes = (block.len() - self.filled).min(limit);
        // SAFETY: in bounds; no other reference exists to bytes at or above `filled` (rule 1);
        // block memory comes zeroed from the kernel, so it is initialised.
        unsafe {
            let start = block.base().add(self.filled);
            slice::from_raw_parts_mut(start.as_ptr(), bytes)
        }
    }

    /// Notes that `bytes` more have arrived in the memory from [`free`](Self::free).
    pub(crate) fn arrived(&mut self, bytes: usize) {
        self.filled += bytes;
        debug_assert!(self.filled <= self.block().len());
    }

    /// Makes room for a complete frame, and moves an incomplete one if necessary. Returns the
    /// number of bytes moved.
    pub(crate) fn make_room(&mut self, pool: &mut BlockPool) -> Result<usize, MemoryError> {
        let cut = self.filled - self.parsed;
        if cut == 0 && self.rewind() {
            return Ok(0);
        }
        // With room for a complete frame after `parsed`, any incomplete frame can be completed.
        if let Some(block) = &self.block
            && block.len() - self.parsed >= CHECK_BYTES + MAX_FRAME_BYTES + BLOCK_ALIGNMENT
            && block.len() > self.filled
        {
            return Ok(0);
        }
        let block = pool.take()?;
        let start = self.parsed % BLOCK_ALIGNMENT;
        if let Some(before) = &self.block {
            // SAFETY: both ranges are in bounds (a block is longer than any frame) and in different
            // blocks, and only this code has the new block.
            unsafe {
                ptr::copy_nonoverlapping(
                    before.base().add(self.parsed).as_ptr(),
                    block.base().add(start).as_ptr(),
                    cut,
                );
            }
        }
        self.block = Some(block);
        self.parsed = start;
        self.filled = start + cut;
        self.refills += 1;
        Ok(cut)
    }

    /// Begins at the front again if no frame of the block is held, that is, if the only references
    /// are the pool's and this one.
    fn rewind(&mut self) -> bool {
        let Some(block) = &self.block else {
            return false;
        };
        if Arc::strong_count(block) > 2 {
            return false;
        }
        // HELD, pairs with the release half of the decrement by the last holder: its reads of the
        // frame are over before this thread writes there.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.parsed %= BLOCK_ALIGNMENT;
        self.filled = self.parsed;
        true
    }

    /// Gives the block back to its pool, unless bytes in it are still to be handed on.
    pub(crate) fn rest(&mut self) {
        if self.unparsed().is_empty() && self.chunk.is_none() {
            self.block = None;
            self.parsed %= BLOCK_ALIGNMENT;
            self.filled = self.parsed;
        }
    }

    /// Continues at the offset that matches the stream position after `bytes` were read elsewhere.
    pub(crate) fn step_over(&mut self, bytes: usize) {
        debug_assert_eq!(self.parsed, self.filled);
        let at = self.parsed + bytes % BLOCK_ALIGNMENT;
        // Room is made before the next read; here only the offset modulo 64 matters.
        let len = self.block().len();
        let at = if at + BLOCK_ALIGNMENT > len {
            // At the tail of a block, the offset is the last one that keeps the position modulo 64.
            len - BLOCK_ALIGNMENT + at % BLOCK_ALIGNMENT
        } else {
            at
        };
        self.parsed = at;
        self.filled = at;
    }
}
