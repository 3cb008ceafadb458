//! The blocks that bytes from the network arrive in.
//!
//! The engine reads a socket straight into a block; messages are handed out in
//! place, and the block is used again when the last of them has been released.
//! A block is counted per *frame descriptor*, not per message, so the data path
//! of a message touches no reference count.
//!
//! Rules:
//! 1. The engine alone writes, and only bytes behind those it handed out. Bytes that were handed
//!    out never move and never change.
//! 2. A block is written from the start again only when its pool holds the last
//!    reference to it, which [`BlockPool::take`] establishes.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Mapping, MemoryError, MemoryUse};

/// Bytes of one block.
pub const DEFAULT_BLOCK_BYTES: usize = 1 << 20;
/// Free blocks that a pool keeps: more than the largest window of a channel can pin. The window's 4
/// MiB of frames fill all but the tails of 5 blocks and reach into one more at either end.
pub const DEFAULT_KEPT_BLOCKS: usize = 8;

/// A fixed number of bytes, page-aligned, whose untouched pages cost nothing.
#[derive(Debug)]
pub struct Block {
    memory: Mapping,
}

impl Block {
    /// A block of its own, of no pool.
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses the range.
    pub fn allocate(bytes: usize) -> Result<Self, MemoryError> {
        let memory = Mapping::anonymous(MemoryUse::ArrivalBlock, bytes)?;
        // With huge pages, the first byte to arrive could cost 2 MiB, so that a thousand quiet
        // sessions would cost 2 GiB.
        memory.prefer_huge_pages(false);
        Ok(Self { memory })
    }

    /// The first byte. Rules 1 and 2 say which threads may write and read behind it.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Returns the length of the block.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(&self) -> usize {
        self.memory.bytes()
    }
}

/// A lease that keeps a block for a frame that lies in the block, until the lease is dropped.
///
/// Like a [`BufferLease`](super::BufferLease), a lease that is handed on stays in registers. An
/// `Arc` does not, because its drop needs its address.
#[derive(Debug)]
pub struct BlockLease {
    block: ManuallyDrop<Arc<Block>>,
}

impl BlockLease {
    /// Creates a lease of `block`.
    #[inline]
    #[must_use]
    pub fn new(block: Arc<Block>) -> Self {
        Self {
            block: ManuallyDrop::new(block),
        }
    }
}

impl Drop for BlockLease {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: no code touches the lease after its drop.
        let_go(unsafe { ManuallyDrop::take(&mut self.block) });
    }
}

#[inline(never)]
fn let_go(block: Arc<Block>) {
    drop(block);
}

/// The blocks of one engine, those in use and some free ones.
#[derive(Debug)]
pub struct BlockPool {
    /// Every block, the most recently taken last. The pool keeps a reference to
    /// each, so a count of one means free.
    blocks: Vec<Pooled>,

    block_bytes: usize,
    kept: usize,
}

/// A block and what its pool knows of it.
#[derive(Debug)]
struct Pooled {
    block: Arc<Block>,
    pages: PageState,
}

/// The state of a free block's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    /// Bytes may have arrived in the pages since the last check.
    Warm,
    /// The block was free at the last check, and nothing has arrived since.
    Cold,
    /// The pages were given back.
    Gone,
}

impl BlockPool {
    /// An empty pool of blocks of `block_bytes`, which keeps up to `kept` free ones.
    #[must_use]
    pub fn new(block_bytes: usize, kept: usize) -> Self {
        Self {
            blocks: Vec::new(),
            block_bytes,
            kept,
        }
    }

    /// Returns a block without other references: the free block that was taken most recently, whose
    /// lines and pages are the warmest, or a new one.
    ///
    /// # Errors
    /// [`MemoryError`] if a new one is needed and the kernel refuses it.
    pub fn take(&mut self) -> Result<Arc<Block>, MemoryError> {
        let free = |pooled: &mut Pooled| is_free(&mut pooled.block);
        let block = match self.blocks.iter_mut().rposition(free) {
            Some(index) => self.blocks.remove(index).block,
            None => Arc::new(Block::allocate(self.block_bytes)?),
        };
        self.trim();
        self.blocks.push(Pooled {
            block: Arc::clone(&block),
            pages: PageState::Warm,
        });
        Ok(block)
    }

    /// Gives back the pages of blocks that were not taken since the last call, and the blocks
    /// beyond those to keep. Returns whether another call may find more.
    pub fn rest(&mut self) -> bool {
        self.trim();
        let mut is_warm = false;
        for Pooled { block, pages } in &mut self.blocks {
            if !is_free(block) {
                continue;
            }
            *pages = match *pages {
                PageState::Warm => PageState::Cold,
                PageState::Cold => {
                    // SAFETY: no other reference to the block exists (rule 2).
                    unsafe { block.memory.discard() };
                    PageState::Gone
                }
                PageState::Gone => PageState::Gone,
            };
            is_warm |= *pages != PageState::Gone;
        }
        is_warm
    }

    /// Makes as many blocks as are kept, so that taking one allocates nothing while no
    /// more are in use. Their pages cost nothing before something arrives in them.
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses one.
    pub fn provide(&mut self) -> Result<(), MemoryError> {
        self.blocks.reserve(self.kept + 1);
        while self.blocks.len() < self.kept {
            self.blocks.push(Pooled {
                block: Arc::new(Block::allocate(self.block_bytes)?),
                pages: PageState::Gone,
            });
        }
        Ok(())
    }

    /// Frees the free blocks beyond those to keep, the coldest first.
    fn trim(&mut self) {
        let mut surplus = self.free().saturating_sub(self.kept);
        self.blocks.retain(|Pooled { block, .. }| {
            let goes = surplus > 0 && Arc::strong_count(block) == 1;
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// The number of blocks, in use and free.
    #[cfg(any(test, feature = "probe"))]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns how many blocks are free; others may become free at any time.
    fn free(&self) -> usize {
        self.blocks
            .iter()
            .filter(|pooled| Arc::strong_count(&pooled.block) == 1)
            .count()
    }
}

impl Default for BlockPool {
    fn default() -> Self {
        Self::new(DEFAULT_BLOCK_BYTES, DEFAULT_KEPT_BLOCKS)
    }
}

/// Returns whether the pool's reference is the last.
///
/// The count is looked at first because that is a plain load; `get_mut` then decides. `get_mut`
/// gives `&mut Block`, which is sound only if everything that the former holders did with the block
/// happened before: its Acquire pairs with the Release by which each of them dropped its reference.
/// So the engine's writes into the block come after the last read of what it held before (rule 2).
/// No thread can take a new reference in the meantime: `&mut` to the pool's own reference is the
/// only way to one, and there are no weak references.
fn is_free(block: &mut Arc<Block>) -> bool {
    Arc::strong_count(block) == 1 && Arc::get_mut(block).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::probe;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_released_block_is_used_again() {
        let mut pool = BlockPool::default();
        let first = pool.take().unwrap();
        let address = first.base();
        assert_eq!(first.len(), DEFAULT_BLOCK_BYTES);
        assert_eq!(address.as_ptr().addr() % 64, 0);

        let second = pool.take().unwrap();
        assert_ne!(second.base(), address, "the first is still in use");
        drop(first);
        assert_eq!((pool.blocks(), pool.free()), (2, 1));
        assert_eq!(pool.take().unwrap().base(), address);
    }

    #[test]
    fn the_hottest_free_block_is_taken_first() {
        let mut pool = BlockPool::new(64 << 10, 8);
        let cold = pool.take().unwrap();
        let hot = pool.take().unwrap();
        let address = hot.base();
        drop((cold, hot));
        for _ in 0..3 {
            assert_eq!(pool.take().unwrap().base(), address);
        }
    }

    #[test]
    fn a_reader_on_another_thread_keeps_its_block() {
        let mut pool = BlockPool::new(64 << 10, 8);
        let block = pool.take().unwrap();
        // SAFETY: no other holder of the block exists yet, and the byte is inside it.
        unsafe { block.base().as_ptr().write(7) };
        let reader = std::thread::spawn(move || {
            // SAFETY: written before the thread began, and not changed while
            // this reference lives (rule 2).
            unsafe { block.base().as_ptr().read_volatile() }
        });
        for _ in 0..100 {
            let next = pool.take().unwrap();
            // SAFETY: `take` gave it to us alone, and the byte is inside it.
            unsafe { next.base().as_ptr().write(9) };
        }
        assert_eq!(reader.join().unwrap(), 7);
    }

    #[test]
    fn provided_blocks_are_there_to_be_taken() {
        let mut pool = BlockPool::new(64 << 10, 3);
        pool.provide().unwrap();
        pool.provide().unwrap();
        assert_eq!((pool.blocks(), pool.free()), (3, 3));
        let _three = [(); 3].map(|()| pool.take().unwrap());
        assert_eq!((pool.blocks(), pool.free()), (3, 0));
    }

    #[test]
    fn free_blocks_beyond_the_bound_are_freed() {
        let mut pool = BlockPool::new(64 << 10, 2);
        let burst: Vec<_> = (0..10).map(|_| pool.take().unwrap()).collect();
        drop(burst);
        assert_eq!(pool.blocks(), 10);
        let _one = pool.take().unwrap();
        assert_eq!((pool.blocks(), pool.free()), (3, 2));
    }

    #[test]
    fn pages_that_nothing_arrived_in_are_not_resident() {
        let mut pool = BlockPool::default();
        let block = pool.take().unwrap();
        assert_eq!(probe::resident_pages(block.base(), block.len()), 0);
        // SAFETY: the block is ours and the byte is inside it.
        unsafe { block.base().as_ptr().write(1) };
        assert_eq!(probe::resident_pages(block.base(), block.len()), 1);
    }

    #[test]
    fn pages_of_blocks_that_nobody_takes_go_back() {
        let mut pool = BlockPool::default();
        let block = pool.take().unwrap();
        let (base, length) = (block.base(), block.len());
        // SAFETY: the block is ours and the byte is inside it.
        unsafe { base.as_ptr().write(1) };
        assert!(!pool.rest(), "it is in use");
        drop(block);
        assert!(pool.rest(), "it was just in use");
        assert_eq!(probe::resident_pages(base, length), 1);
        assert!(!pool.rest());
        assert_eq!(probe::resident_pages(base, length), 0);
        assert_eq!(pool.take().unwrap().base(), base);
        assert!(pool.rest(), "it was taken meanwhile");
    }

    proptest! {
        /// Takes and drops leases in any order: no two holders ever have the same block, and never
        /// more are free than may be kept.
        #[test]
        fn no_block_has_two_holders(steps in prop::collection::vec(any::<Option<u8>>(), 1..200)) {
            let mut pool = BlockPool::new(4096, 3);
            let mut held: Vec<Arc<Block>> = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let block = pool.take().unwrap();
                        prop_assert!(held.iter().all(|other| other.base() != block.base()));
                        prop_assert!(pool.free() <= 3);
                        held.push(block);
                    }
                    Some(pick) if !held.is_empty() => {
                        held.swap_remove(usize::from(pick) % held.len());
                    }
                    Some(_) => {}
                }
                prop_assert_eq!(pool.blocks(), held.len() + pool.free());
            }
        }
    }
}
