//! Compaction: frames of a channel that holds old frames are copied to memory of their own.
//!
//! A held message pins the arrival block that it lies in. A channel that holds its messages for
//! long while other channels flow would pin one block after the other for a few bytes in each. So
//! the engine copies the channel's frames into blocks of the channel's own once it holds a message
//! from before the last refill but one. The channel then pins at most two shared blocks, and as
//! much of its own blocks as its window allows.
//!
//! A channel that fills half of a block or more pins at most twice the bytes that it holds. Its
//! messages may stay in the shared blocks while it keeps that pace: its full window spans three
//! blocks and is not copied.

use std::{
    mem,
    ptr::{self, NonNull},
    sync::Arc,
};

use ibex_protocol::format::frame::BLOCK_ALIGNMENT;
use ibex_ring::memory::{Block, BlockPool, DEFAULT_BLOCK_BYTES, LARGEST_RING_BYTES, MemoryError};

/// A channel's own block, and the messages that it holds from before.
#[derive(Default)]
pub(super) struct Compact {
    block: Option<Arc<Block>>,
    /// Frames refer to bytes of the block below this offset, and none to bytes at or above it.
    filled: usize,
    /// The refill in which `newest` was noted.
    refill: u64,
    /// Bytes that have arrived in that refill.
    bytes: usize,
    /// Messages that had arrived when that refill began.
    newest: u64,
    /// Messages that had arrived before the last complete refill that other channels mostly filled.
    /// While the channel holds one of them, its frames are copied.
    before: u64,
}

impl Compact {
    /// Notes a frame that takes `bytes` of refill `refill` of the socket's block. `arrived`
    /// messages came before it.
    pub(super) fn note(&mut self, refill: u64, arrived: u64, bytes: usize) {
        if self.refill != refill {
            self.refill = refill;
            let began = mem::replace(&mut self.newest, arrived);
            if mem::take(&mut self.bytes) < MOST_OF_A_BLOCK {
                self.before = began;
            }
        }
        self.bytes += bytes;
    }

    /// Releases the block; the next copy takes another.
    pub(super) fn rest(&mut self) {
        self.block = None;
    }

    /// Returns whether a frame is to be copied out of the block that it arrived in. A frame that is
    /// too long for a compact block stays, because it pins little besides itself.
    pub(super) fn is_wanted(&self, released: u64, frame_bytes: usize) -> bool {
        released < self.before && frame_bytes <= LONGEST_COPIED
    }

    /// Copies a frame that is [wanted](Self::is_wanted) into the channel's own block, at
    /// the same offset modulo 64.
    ///
    /// # Safety
    ///
    /// `bytes` can be read from `from` on, and no thread writes there meanwhile.
    pub(super) unsafe fn copy(
        &mut self,
        from: NonNull<u8>,
        bytes: usize,
        pool: &mut BlockPool,
    ) -> Result<(Arc<Block>, usize), MemoryError> {
        debug_assert!(bytes <= LONGEST_COPIED);
        let phase = from.addr().get() % BLOCK_ALIGNMENT;
        let behind = self.filled.next_multiple_of(BLOCK_ALIGNMENT) + phase;
        let (block, offset) = match self.block.take() {
            Some(block) if behind + bytes <= block.len() => (block, behind),
            _ => (pool.take()?, phase),
        };
        // SAFETY: both ranges are in bounds: the source by the caller's contract, the destination
        // by the check above or, at the front of a block, by `LONGEST_COPIED`. No other reference
        // exists to bytes at or above `filled`, or to a block that was just taken. So the ranges do
        // not overlap.
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), block.base().add(offset).as_ptr(), bytes);
        }
        self.filled = offset + bytes;
        self.block = Some(block.clone());
        Ok((block, offset))
    }
}

/// The pool that [`Compact::copy`] takes from, for all channels of an engine.
pub(crate) fn compact_pool() -> BlockPool {
    BlockPool::new(COMPACT_BLOCK_BYTES, COMPACT_BLOCKS_KEPT)
}

/// A channel that took this much of a shared block counts as having filled it.
const MOST_OF_A_BLOCK: usize = DEFAULT_BLOCK_BYTES / 2;
/// Small, because each channel that was slow once keeps one.
const COMPACT_BLOCK_BYTES: usize = 64 << 10;
/// The longest frame that fits into such a block at any offset modulo 64.
const LONGEST_COPIED: usize = COMPACT_BLOCK_BYTES - BLOCK_ALIGNMENT;

/// Number of blocks that are kept: as many as the slowest receiver of the largest channel can pin.
/// So a receiver that loses its core, long after the start, causes no allocation.
///
/// A window's bytes fill at least half of their blocks: two neighbouring frames that do not share a
/// block are longer than one block. A frame at either end is pinned as a whole. The blocks take 8
/// MiB of addresses, and only as much memory as was ever used. Several such channels at a time
/// allocate more blocks and free them afterwards.
const COMPACT_BLOCKS_KEPT: usize = 2 * LARGEST_RING_BYTES / COMPACT_BLOCK_BYTES + 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::collections::VecDeque;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A whole window of frames of any lengths needs no block beyond those provided, and the
        /// copied bytes are unchanged.
        #[test]
        fn a_window_of_frames_finds_its_blocks_provided(
            lengths in vec(prop_oneof![1..=LONGEST_COPIED, Just(32 << 10), Just(40_000)], 1..20),
            phase in (0..8_usize).prop_map(|words| 8 * words),
        ) {
            let mut pool = compact_pool();
            pool.provide().unwrap();
            let provided = pool.blocks();
            let from = Arc::new(Block::allocate(1 << 20).unwrap());
            let mut compact = Compact::default();
            let mut held = VecDeque::new();
            let mut held_bytes = 0;
            for round in 0..400 {
                let bytes = lengths[round % lengths.len()];
                while held_bytes + bytes > LARGEST_RING_BYTES {
                    let (_, _, oldest): (Arc<Block>, usize, usize) = held.pop_front().unwrap();
                    held_bytes -= oldest;
                }
                // SAFETY: no other reference to the block exists, and the byte is inside it.
                unsafe { from.base().add(phase).as_ptr().write(round as u8) };
                // SAFETY: as above.
                let at = unsafe { from.base().add(phase) };
                // SAFETY: `bytes` fit into the block after the largest offset.
                let (block, offset) = unsafe { compact.copy(at, bytes, &mut pool) }.unwrap();
                prop_assert_eq!(offset % BLOCK_ALIGNMENT, phase);
                prop_assert!(offset + bytes <= block.len());
                // SAFETY: the byte was just written, and only this test has the block.
                prop_assert_eq!(unsafe { block.base().add(offset).read() }, round as u8);
                held_bytes += bytes;
                held.push_back((block, offset, bytes));
                prop_assert_eq!(pool.blocks(), provided);
            }
        }
    }

    #[test]
    fn a_channel_that_keeps_up_is_not_copied() {
        let mut compact = Compact::default();
        for refill in 0..10 {
            compact.note(refill, 100 * refill, 100);
            assert!(!compact.is_wanted(100 * refill, 100));
        }
        // Held since before the last refill but one.
        assert!(compact.is_wanted(799, 100));
        assert!(!compact.is_wanted(800, 100));
        assert!(!compact.is_wanted(0, COMPACT_BLOCK_BYTES), "no room for it");
    }

    #[test]
    fn a_channel_that_fills_the_blocks_may_hold_what_its_window_allows() {
        let mut compact = Compact::default();
        let mut fill = |refill, bytes| {
            compact.note(refill, 100 * refill, bytes);
            compact.is_wanted(0, 100)
        };
        for refill in 1..10 {
            assert!(!fill(refill, MOST_OF_A_BLOCK), "block {refill}");
        }
        // The channel takes little of the tenth block, which it notices at the eleventh.
        assert!(!fill(10, 100));
        assert!(fill(11, MOST_OF_A_BLOCK));
        // It still holds that old message while it fills blocks again.
        assert!(fill(12, MOST_OF_A_BLOCK));
        assert!(
            !compact.is_wanted(1000, 100),
            "what it holds came in the tenth"
        );
    }
}
