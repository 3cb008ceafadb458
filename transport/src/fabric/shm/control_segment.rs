//! Where each side of a session states its counters for the other to read.
//!
//! A control segment is a sealed memory file of fixed size, an array of
//! [`CONTROL_BLOCKS`] blocks; each block belongs to one end of one channel, and
//! is laid out as [`SenderWords`] or as [`ReceiverWords`]. Both sides of a
//! session have segments of their own, more of them as channels are added.
//!
//! A block is all zero when it is leased. It is leased again only after the peer
//! is known to read it no more (or never again to believe it): that is when its
//! [`ControlBlock`] may be dropped.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sealed::{self, SegmentRefused};
use crate::channel::words::{BLOCK_BYTES, ReceiverWords, SenderWords, Words};
use crate::memory::{Access, Mapping, MemoryError, MemoryUse, create_memfd};

/// Bytes of a control segment.
pub const CONTROL_SEGMENT_BYTES: usize = 64 << 10;
/// Blocks in a control segment.
pub const CONTROL_BLOCKS: u32 = (CONTROL_SEGMENT_BYTES / BLOCK_BYTES) as u32;

/// A control segment of this side.
#[derive(Debug)]
pub struct ControlSegment {
    memory: Mapping,
    /// Blocks that are not leased; the next to be leased is the last.
    free: Mutex<Vec<u32>>,
}

impl ControlSegment {
    /// A segment of free blocks, and the descriptor to pass to the peer and then
    /// close.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn create() -> Result<(Arc<Self>, OwnedFd), MemoryError> {
        let (what, bytes) = (MemoryUse::ControlBlocks, CONTROL_SEGMENT_BYTES);
        let fd = create_memfd(what, bytes)?;
        let memory = Mapping::of_file(what, fd.as_fd(), bytes, Access::ReadWrite)?;
        sealed::seal(&fd, what, bytes)?;
        let free = Mutex::new((0..CONTROL_BLOCKS).rev().collect());
        Ok((Arc::new(Self { memory, free }), fd))
    }

    /// A zeroed block, or `None` if all are leased: another segment is due.
    #[must_use]
    pub fn lease_block(self: &Arc<Self>) -> Option<ControlBlock> {
        let index = self.free().pop()?;
        Some(ControlBlock {
            index,
            segment: Arc::clone(self),
        })
    }

    /// How many blocks are not leased.
    #[cfg(test)]
    fn free_blocks(&self) -> usize {
        self.free().len()
    }

    /// The list is whole after every statement, so a panic elsewhere while it
    /// was locked does not spoil it.
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One block of ours, for as long as it is leased.
#[derive(Debug)]
pub struct ControlBlock {
    index: u32,
    segment: Arc<ControlSegment>,
}

impl ControlBlock {
    /// Which block of its segment it is, to be told to the peer.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The block as the words of an end that we send on, reset. The block is leased for
    /// as long as they are used.
    #[must_use]
    pub fn into_sender_words(self) -> Words<SenderWords> {
        let block = block_address(&self.segment.memory, self.index).cast();
        // SAFETY: `block_address` gives an aligned block of a writable mapping, which the
        // lease keeps; any bits are a value of an atomic.
        let words = unsafe { Words::<SenderWords>::mapped(block, Arc::new(self)) };
        words.reset();
        words
    }

    /// The block as the words of an end that we receive on, whose ring begins at
    /// `first_position`.
    #[must_use]
    pub fn into_receiver_words(self, first_position: u64) -> Words<ReceiverWords> {
        let block = block_address(&self.segment.memory, self.index).cast();
        // SAFETY: as in `into_sender_words`.
        let words = unsafe { Words::<ReceiverWords>::mapped(block, Arc::new(self)) };
        words.reset(first_position);
        words
    }
}

impl Drop for ControlBlock {
    fn drop(&mut self) {
        self.segment.free().push(self.index);
    }
}

/// A control segment of the peer, which we only read.
#[derive(Debug)]
pub struct PeerControlSegment {
    memory: Mapping,
}

impl PeerControlSegment {
    /// Checks what the peer passed and maps it read-only.
    ///
    /// # Errors
    /// [`SegmentRefused`] if it is not what [`ControlSegment::create`] makes, or
    /// there is no room for the mapping.
    pub fn accept(fd: OwnedFd) -> Result<Arc<Self>, SegmentRefused> {
        sealed::check(fd.as_fd(), CONTROL_SEGMENT_BYTES as u64)?;
        let (what, bytes) = (MemoryUse::ControlBlocks, CONTROL_SEGMENT_BYTES);
        let memory = Mapping::of_file(what, fd.as_fd(), bytes, Access::ReadOnly)?;
        Ok(Arc::new(Self { memory }))
    }

    /// The block that the peer named as the words of an end that it sends on, or `None`
    /// if there is no such block. They are only to be read: a store is SIGSEGV.
    #[must_use]
    pub fn sender_words(self: &Arc<Self>, index: u32) -> Option<Words<SenderWords>> {
        let block = (index < CONTROL_BLOCKS)
            .then(|| block_address(&self.memory, index))?
            .cast();
        // SAFETY: an aligned block of a mapping that the `Arc` keeps; the file is sealed,
        // so it does not shrink under it. Readers only load.
        Some(unsafe { Words::mapped(block, self.clone()) })
    }

    /// The same for an end that the peer receives on.
    #[must_use]
    pub fn receiver_words(self: &Arc<Self>, index: u32) -> Option<Words<ReceiverWords>> {
        let block = (index < CONTROL_BLOCKS)
            .then(|| block_address(&self.memory, index))?
            .cast();
        // SAFETY: as in `sender_words`.
        Some(unsafe { Words::mapped(block, self.clone()) })
    }
}

/// The block of that number, which lies inside the mapping of a segment.
fn block_address(segment: &Mapping, index: u32) -> NonNull<u8> {
    assert!(index < CONTROL_BLOCKS && segment.bytes() == CONTROL_SEGMENT_BYTES);
    // SAFETY: by the assertion, the block lies inside the mapping.
    unsafe { segment.base().add(index as usize * BLOCK_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::counters::Counters;
    use crate::memory::probe;
    use rustix::fs::{fcntl_add_seals, ftruncate};
    use rustix::io::Errno;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn the_peer_reads_what_the_owner_states() {
        let (ours, fd) = ControlSegment::create().unwrap();
        let theirs = PeerControlSegment::accept(fd).unwrap();

        let block = ours.lease_block().unwrap();
        let seen = theirs.sender_words(block.index()).unwrap();
        let words = block.into_sender_words();
        assert_eq!(seen.closed_at(), None);
        words.rung.ring(3, || ());
        words.close(12);
        words.asked.store(2, Relaxed);
        assert_eq!(seen.closed_at(), Some(12));
        assert!(seen.rung.is_for(&AtomicU32::new(3)));
        assert_eq!(seen.asked.load(Relaxed), 2);

        let block = ours.lease_block().unwrap();
        let seen = theirs.receiver_words(block.index()).unwrap();
        let words = block.into_receiver_words(8);
        assert_eq!(seen.released(), (0, 8));
        words.report(&Counters {
            received: 9,
            released: 8,
            released_position: 640,
            acknowledged: 7,
            acknowledgement_ended: true,
        });
        words.close();
        words.armed.store(5, Relaxed);
        assert_eq!((seen.received(), seen.released()), (9, (8, 640)));
        assert_eq!(seen.acknowledged(), (7, true));
        assert!(seen.is_closed());
        assert_eq!(seen.armed.load(Relaxed), 5);
    }

    #[test]
    fn blocks_do_not_overlap_and_run_out() {
        let (segment, _fd) = ControlSegment::create().unwrap();
        let blocks: Vec<_> = std::iter::from_fn(|| segment.lease_block()).collect();
        assert_eq!(blocks.len(), 256);
        let words: Vec<_> = blocks
            .into_iter()
            .map(|block| block.into_receiver_words(0))
            .collect();
        for (number, words) in words.iter().enumerate() {
            assert_eq!(words.received(), 0);
            words.report(&Counters {
                received: number as u64,
                ..Counters::default()
            });
            words.armed.store(u32::MAX, Relaxed);
        }
        for (number, words) in words.iter().enumerate() {
            assert_eq!(words.received(), number as u64);
        }
    }

    #[test]
    fn a_block_that_is_leased_again_is_reset() {
        let (segment, _fd) = ControlSegment::create().unwrap();
        let block = segment.lease_block().unwrap();
        let index = block.index();
        let words = block.into_receiver_words(0);
        words.close();
        words.armed.store(1, Relaxed);
        drop(words);

        let block = segment.lease_block().unwrap();
        assert_eq!(block.index(), index);
        let words = block.into_receiver_words(56);
        assert!(!words.is_closed());
        assert_eq!((words.released(), words.armed.load(Relaxed)), ((0, 56), 0));
        assert_eq!(segment.free_blocks(), 255);
    }

    #[test]
    fn a_block_outside_the_segment_is_none() {
        let (_segment, fd) = ControlSegment::create().unwrap();
        let theirs = PeerControlSegment::accept(fd).unwrap();
        assert!(theirs.sender_words(CONTROL_BLOCKS - 1).is_some());
        assert!(theirs.sender_words(CONTROL_BLOCKS).is_none());
        assert!(theirs.receiver_words(u32::MAX).is_none());
    }

    #[test]
    fn the_descriptor_gives_no_way_to_change_the_segment() {
        let (_segment, fd) = ControlSegment::create().unwrap();
        let (what, bytes) = (MemoryUse::ControlBlocks, CONTROL_SEGMENT_BYTES);
        assert!(Mapping::of_file(what, fd.as_fd(), bytes, Access::ReadWrite).is_err());
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
    }

    #[test]
    fn an_unsealed_or_short_segment_is_refused() {
        let unsealed = create_memfd(MemoryUse::ControlBlocks, CONTROL_SEGMENT_BYTES).unwrap();
        let refused = PeerControlSegment::accept(unsealed).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::NotSealed { .. }),
            "{refused}"
        );

        let short = create_memfd(MemoryUse::ControlBlocks, 4096).unwrap();
        fcntl_add_seals(&short, sealed::SEALS).unwrap();
        let refused = PeerControlSegment::accept(short).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::WrongSize { found: 4096, .. }),
            "{refused}"
        );
    }

    #[test]
    fn nothing_is_left_after_drop() {
        let (segment, fd) = ControlSegment::create().unwrap();
        let file = probe::inode(&fd);
        let theirs = PeerControlSegment::accept(fd).unwrap();
        let block = segment.lease_block().unwrap();
        drop((segment, theirs));
        assert_eq!(
            probe::mappings_of(file),
            1,
            "a leased block keeps its segment"
        );
        drop(block);
        assert_eq!(probe::mappings_of(file), 0);
    }
}
