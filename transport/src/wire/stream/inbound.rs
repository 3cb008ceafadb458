//! Arrival memory of one connection: a block that the socket is read into, and that
//! frames are read from in place.
//!
//! Rules:
//!
//! 1. Bytes of the block below `filled` are written once and then only read; the socket is read
//!    into the bytes behind. So frames that were handed on stay as they are.
//! 2. Offsets in the block equal the stream's position modulo 64, so that the padding
//!    that the sender computed aligns payloads here.
//! 3. When no frame of the block is held any more, or its end is near, reading goes on
//!    at the front of this or another block; a frame that is cut by it is moved, and
//!    counted.

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
    /// Up to where bytes have arrived.
    filled: usize,
    /// Up to where frames were handed on.
    parsed: usize,
    /// Counts the blocks that were begun.
    refills: u64,
    /// A large message's chunk that is being read straight into its place.
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
    /// All of its bytes, here or to come.
    pub(crate) bytes: usize,
    /// Bytes still to come.
    pub(crate) left: usize,
    /// Zeros behind it that fill the frame.
    pub(crate) fill: usize,
    /// True if this is the message's last chunk.
    pub(crate) complete: bool,
    /// Extent that its check covers, and the value that it has to have.
    pub(crate) check: (Coverage, u32),
}

impl ChunkInProgress {
    /// Returns the next byte's place in the message.
    pub(crate) fn next(&self) -> u64 {
        self.offset + (self.bytes - self.left) as u64
    }
}

impl Inbound {
    /// Tells whether a frame is here in part.
    pub(crate) fn is_in_frame(&self) -> bool {
        self.chunk.is_some() || self.skip > 0 || !self.unparsed().is_empty()
    }

    /// The block, once there was room for something.
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

    /// Bytes that have arrived and are not handed on.
    pub(crate) fn unparsed(&self) -> &[u8] {
        let Some(block) = &self.block else { return &[] };
        // SAFETY: in bounds (`parsed <= filled <= len`), written, and never written
        // again while this block is current (rule 1).
        unsafe {
            let start = block.base().add(self.parsed);
            slice::from_raw_parts(start.as_ptr(), self.filled - self.parsed)
        }
    }

    /// Hands `bytes` on.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.parsed += bytes;
        debug_assert!(self.parsed <= self.filled);
    }

    /// Returns where the socket may be read into: at most `limit` bytes.
    pub(crate) fn free(&mut self, limit: usize) -> &mut [u8] {
        let block = self.block();
        let bytes = (block.len() - self.filled).min(limit);
        // SAFETY: in bounds; nobody else refers to bytes behind `filled` (rule 1); block
        // memory comes zeroed from the kernel, so it is initialised.
        unsafe {
            let start = block.base().add(self.filled);
            slice::from_raw_parts_mut(start.as_ptr(), bytes)
        }
    }

    /// `bytes` more have arrived in [`free`](Self::free).
    pub(crate) fn arrived(&mut self, bytes: usize) {
        #[cfg(record_writes)]
        ibex_base::sync::recorded::arrived(self.block().base().addr().get() + self.filled);
        self.filled += bytes;
        debug_assert!(self.filled <= self.block().len());
    }

    /// Makes room for a whole frame, moving a cut one. Returns the bytes moved.
    pub(crate) fn make_room(&mut self, pool: &mut BlockPool) -> Result<usize, MemoryError> {
        let cut = self.filled - self.parsed;
        if cut == 0 && self.rewind() {
            return Ok(0);
        }
        // With a whole frame's room behind `parsed`, whatever is cut can be completed.
        if let Some(block) = &self.block
            && block.len() - self.parsed >= CHECK_BYTES + MAX_FRAME_BYTES + BLOCK_ALIGNMENT
            && block.len() > self.filled
        {
            return Ok(0);
        }
        let block = pool.take()?;
        let start = self.parsed % BLOCK_ALIGNMENT;
        if let Some(before) = &self.block {
            // SAFETY: both ranges are in bounds (a block is longer than any frame), of
            // different blocks, and the new one is ours alone.
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

    /// Begins at the front again if no frame of the block is held: the pool and we have the only
    /// references.
    fn rewind(&mut self) -> bool {
        let Some(block) = &self.block else {
            return false;
        };
        if Arc::strong_count(block) > 2 {
            return false;
        }
        // HELD, pairs with the release half of the decrement by the last holder: its
        // reads of the frame are over before we write there.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.parsed %= BLOCK_ALIGNMENT;
        self.filled = self.parsed;
        true
    }

    /// Gives the block back to its pool, unless something of it is still to be handed on.
    pub(crate) fn rest(&mut self) {
        if self.unparsed().is_empty() && self.chunk.is_none() {
            self.block = None;
            self.parsed %= BLOCK_ALIGNMENT;
            self.filled = self.parsed;
        }
    }

    /// Continues at the offset that fits the stream after `bytes` went elsewhere.
    pub(crate) fn step_over(&mut self, bytes: usize) {
        debug_assert_eq!(self.parsed, self.filled);
        let at = self.parsed + bytes % BLOCK_ALIGNMENT;
        // Room is made before the next read; here only the offset modulo 64 matters.
        let len = self.block().len();
        let at = if at + BLOCK_ALIGNMENT > len {
            // The tail of a block: stand at its very end, in step.
            len - BLOCK_ALIGNMENT + at % BLOCK_ALIGNMENT
        } else {
            at
        };
        self.parsed = at;
        self.filled = at;
    }
}
