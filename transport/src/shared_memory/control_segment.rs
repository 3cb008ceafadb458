//! Control segments, in which each side of a session publishes its counters for the other to read.
//!
//! A control segment is a sealed memory file, whose size [`segment_bytes`] returns. It is an array
//! of blocks. Each block belongs to one end of one channel, and is laid out as [`SenderWords`] or
//! as [`ReceiverWords`]. Both sides of a session have segments of their own, and more of them as
//! channels are added.
//!
//! A block is all zero when it is leased. It is leased again only after the peer is known not to
//! read or not to trust it any more; only then may its [`ControlBlock`] be dropped. Only the same
//! session leases the block again, because one side knows of the end of a session before the other.
//! So sessions with one process may share segments, and each has a [`SegmentShare`].

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard, atomic::Ordering};

use ibex_base::sync::{AtomicU32, Mutex, lock};
use ibex_ring::{
    end_status::{BLOCK_BYTES, ReceiverWords, SenderWords, Words},
    memory::{Access, Mapping, MemoryError, MemoryUse, create_memfd},
};
use rustix::io::fcntl_dupfd_cloexec;

use super::sealed::{self, SegmentRefused};

/// Returns the bytes of a session's control segment number `index`. The first is short, because
/// most sessions have few channels; each is twice as long as the one before, up to 64 KiB.
#[must_use]
pub fn segment_bytes(index: u32) -> usize {
    MOST_BYTES.min(LEAST_BYTES << index.min(u32::BITS))
}

/// Returns the most control segments that either side of a session needs which may have `ends` ends
/// open. Of those that sessions share (see `ControlSegments`), each has one block for it at least.
#[must_use]
pub fn most_segments(ends: usize) -> usize {
    SHARED + (ends + MOST_KEPT).div_ceil(MOST_BYTES / BLOCK_BYTES)
}

/// Bytes of the longest control segment.
pub(super) const MOST_BYTES: usize = 64 << 10;
/// Bytes of the shortest control segment.
const LEAST_BYTES: usize = 4 << 10;
/// Number of a session's segments that are shorter than the longest.
const SHARED: usize = (MOST_BYTES / LEAST_BYTES).ilog2() as usize;
/// Number of a session's ends that may be over while a program keeps messages of theirs.
const MOST_KEPT: usize = 1024;

/// A control segment of this side, for all sessions with the process that may read it.
#[derive(Debug)]
pub struct ControlSegment {
    memory: Mapping,
    /// A descriptor for further sessions, if the segment is shared.
    kept: Option<OwnedFd>,
    /// Number of blocks, counted from the first, that were given to sessions. None is given again,
    /// because the peer may still read it as that session's.
    given: AtomicU32,
}

impl ControlSegment {
    /// Makes a segment of free blocks. Returns its descriptor, to pass to the peer and then close.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn create(bytes: usize, is_shared: bool) -> Result<(Arc<Self>, OwnedFd), MemoryError> {
        let what = MemoryUse::ControlBlocks;
        let fd = create_memfd(what, bytes)?;
        let memory = Mapping::of_file(what, fd.as_fd(), bytes, Access::ReadWrite)?;
        sealed::seal(&fd, what, bytes)?;
        let kept = is_shared.then(|| duplicate(&fd, bytes)).transpose()?;
        let given = AtomicU32::new(0);
        let segment = Self {
            memory,
            kept,
            given,
        };
        Ok((Arc::new(segment), fd))
    }

    /// Returns a descriptor to pass to the peer of another session, and then close; `None` if the
    /// segment is not shared.
    ///
    /// # Errors
    /// [`MemoryError`] if the process may open no more descriptors.
    pub fn to_pass(&self) -> Result<Option<OwnedFd>, MemoryError> {
        let kept = self.kept.as_ref();
        kept.map(|fd| duplicate(fd, self.memory.bytes()))
            .transpose()
    }

    fn give_block(&self) -> Option<u32> {
        let next = |given| (given < blocks_in(self.memory.bytes())).then_some(given + 1);
        self.given
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()
    }
}

/// A session's share of a control segment.
#[derive(Debug)]
pub struct SegmentShare {
    segment: Arc<ControlSegment>,
    /// Blocks of the session that are not leased.
    free: Mutex<Vec<u32>>,
}

impl SegmentShare {
    /// Makes an empty share.
    #[must_use]
    pub fn new(segment: Arc<ControlSegment>) -> Arc<Self> {
        let free = Mutex::default();
        Arc::new(Self { segment, free })
    }

    /// Returns whether both are shares of one segment.
    #[cfg(test)]
    pub(super) fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.segment, &other.segment)
    }

    /// Returns a zeroed block, or `None` if all are leased and another segment is needed.
    #[must_use]
    pub fn lease_block(self: &Arc<Self>) -> Option<ControlBlock> {
        let returned = self.free().pop();
        let index = returned.or_else(|| self.segment.give_block())?;
        Some(ControlBlock {
            index,
            share: Arc::clone(self),
        })
    }

    /// Locks the list. It is consistent after every statement, so a panic while it was locked does
    /// not corrupt it.
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.free)
    }
}

/// A leased block of one of this node's segments.
#[derive(Debug)]
pub struct ControlBlock {
    index: u32,
    share: Arc<SegmentShare>,
}

impl ControlBlock {
    /// Returns the block's index in its segment, which the peer is sent.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the block, reset, as the words of a sending end of this node. The block stays leased
    /// as long as the words are used.
    #[must_use]
    pub fn into_sender_words(self) -> Words<SenderWords> {
        let block = block_address(&self.share.segment.memory, self.index).cast();
        // SAFETY: `block_address` returns an aligned block of a writable mapping, which the lease
        // keeps; any bit pattern is a valid atomic.
        let words = unsafe { Words::<SenderWords>::mapped(block, Arc::new(self)) };
        words.reset();
        words
    }

    /// Returns the block as the words of a receiving end of this node, whose ring begins at
    /// `first_position`.
    #[must_use]
    pub fn into_receiver_words(self, first_position: u64) -> Words<ReceiverWords> {
        let block = block_address(&self.share.segment.memory, self.index).cast();
        // SAFETY: as in `into_sender_words`.
        let words = unsafe { Words::<ReceiverWords>::mapped(block, Arc::new(self)) };
        words.reset(first_position);
        words
    }
}

impl Drop for ControlBlock {
    fn drop(&mut self) {
        self.share.free().push(self.index);
    }
}

/// A control segment of the peer, which this process only reads.
#[derive(Debug)]
pub struct PeerControlSegment {
    memory: Mapping,
}

impl PeerControlSegment {
    /// Checks the segment that the peer passed, and maps it read-only.
    ///
    /// # Errors
    /// [`SegmentRefused`] if the segment is not as `ControlSegment::create` makes it, or if there
    /// is no room for the mapping.
    pub fn accept(fd: impl AsFd, bytes: usize) -> Result<Arc<Self>, SegmentRefused> {
        sealed::check(fd.as_fd(), bytes as u64)?;
        let what = MemoryUse::ControlBlocks;
        let memory = Mapping::of_file(what, fd.as_fd(), bytes, Access::ReadOnly)?;
        Ok(Arc::new(Self { memory }))
    }

    /// Returns the block that the peer named, as the words of a sending end of the peer, or `None`
    /// if there is no such block. The words are read-only: a store raises SIGSEGV.
    #[must_use]
    pub fn sender_words(self: &Arc<Self>, index: u32) -> Option<Words<SenderWords>> {
        let block = (index < blocks_in(self.memory.bytes()))
            .then(|| block_address(&self.memory, index))?
            .cast();
        // SAFETY: this is an aligned block of a mapping that the `Arc` keeps; the file is sealed,
        // so it cannot shrink. Readers only load.
        Some(unsafe { Words::mapped(block, self.clone()) })
    }

    /// Returns the block that the peer named, as the words of a receiving end of the peer.
    #[must_use]
    pub fn receiver_words(self: &Arc<Self>, index: u32) -> Option<Words<ReceiverWords>> {
        let block = (index < blocks_in(self.memory.bytes()))
            .then(|| block_address(&self.memory, index))?
            .cast();
        // SAFETY: as in `sender_words`.
        Some(unsafe { Words::mapped(block, self.clone()) })
    }
}

fn duplicate(fd: &OwnedFd, bytes: usize) -> Result<OwnedFd, MemoryError> {
    fcntl_dupfd_cloexec(fd, 0).map_err(|errno| {
        MemoryError::new(MemoryUse::ControlBlocks, bytes, "F_DUPFD_CLOEXEC", errno)
    })
}

/// Returns the number of blocks in a segment of `bytes` bytes.
fn blocks_in(bytes: usize) -> u32 {
    (bytes / BLOCK_BYTES) as u32
}

/// Returns the address of block `index`, which lies inside the mapping of a segment.
fn block_address(segment: &Mapping, index: u32) -> NonNull<u8> {
    assert!(index < blocks_in(segment.bytes()));
    // SAFETY: by the assertion, the block lies inside the mapping.
    unsafe { segment.base().add(index as usize * BLOCK_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_base::sync::Asymmetry;
    use ibex_protocol::format::counters::Counters;
    use ibex_ring::{Arm, memory::probe};
    use rustix::fs::{fcntl_add_seals, ftruncate};
    use rustix::io::Errno;

    fn share_of(bytes: usize) -> (Arc<SegmentShare>, OwnedFd) {
        let (segment, fd) = ControlSegment::create(bytes, false).unwrap();
        (SegmentShare::new(segment), fd)
    }

    #[test]
    fn the_peer_reads_what_the_owner_states() {
        let (ours, fd) = share_of(MOST_BYTES);
        let theirs = PeerControlSegment::accept(fd, MOST_BYTES).unwrap();

        let block = ours.lease_block().unwrap();
        let sender = theirs.sender_words(block.index()).unwrap();
        let seen = &sender;
        let words = block.into_sender_words();
        assert_eq!(seen.closed_at(), None);
        words.rung.ring(1, || ());
        words.close(12);
        Arm::new().arm(&words.asked, Asymmetry::Fence);
        assert_eq!(seen.closed_at(), Some(12));
        assert_eq!(seen.asked.generation(), 1);

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
        Arm::new().arm(&words.armed, Asymmetry::Fence);
        assert_eq!((seen.received(), seen.released()), (9, (8, 640)));
        assert_eq!(seen.acknowledged(), (7, true));
        assert!(seen.is_closed());
        assert!(sender.rung.is_for(&seen.armed));
    }

    #[test]
    fn blocks_do_not_overlap_and_run_out() {
        let (segment, _fd) = share_of(MOST_BYTES);
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
            Arm::new().arm(&words.armed, Asymmetry::Fence);
        }
        for (number, words) in words.iter().enumerate() {
            assert_eq!(words.received(), number as u64);
        }
    }

    #[test]
    fn segments_grow_and_each_of_their_blocks_is_there() {
        let sizes: Vec<_> = (0..6).map(segment_bytes).collect();
        assert_eq!(sizes, [4, 8, 16, 32, 64, 64].map(|kib| kib << 10));
        assert_eq!(segment_bytes(u32::MAX), MOST_BYTES);
        let (segment, fd) = share_of(4 << 10);
        let theirs = PeerControlSegment::accept(fd, 4 << 10).unwrap();
        let blocks: Vec<_> = std::iter::from_fn(|| segment.lease_block()).collect();
        assert_eq!(blocks.len(), 16);
        assert!(theirs.sender_words(15).is_some() && theirs.sender_words(16).is_none());
    }

    #[test]
    fn few_segments_have_room_for_all_ends() {
        assert_eq!(most_segments(1), 9);
        assert_eq!(most_segments(1024), 12);
        assert_eq!(most_segments(16384), 72);
        assert_eq!(segment_bytes(SHARED as u32), MOST_BYTES);
        assert!(segment_bytes(SHARED as u32 - 1) < MOST_BYTES);
    }

    #[test]
    fn a_block_that_is_leased_again_is_reset() {
        let (share, _fd) = share_of(MOST_BYTES);
        let block = share.lease_block().unwrap();
        let index = block.index();
        let words = block.into_receiver_words(0);
        words.close();
        Arm::new().arm(&words.armed, Asymmetry::Fence);
        drop(words);

        let other = SegmentShare::new(share.segment.clone());
        let others = other.lease_block().unwrap();
        assert_ne!(others.index(), index, "another session's");
        let block = share.lease_block().unwrap();
        assert_eq!(block.index(), index);
        let words = block.into_receiver_words(56);
        assert!(!words.is_closed());
        assert_eq!((words.released(), words.armed.generation()), ((0, 56), 0));
    }

    #[test]
    fn a_block_outside_the_segment_is_none() {
        let (_share, fd) = share_of(MOST_BYTES);
        let theirs = PeerControlSegment::accept(fd, MOST_BYTES).unwrap();
        assert!(theirs.sender_words(blocks_in(MOST_BYTES) - 1).is_some());
        assert!(theirs.sender_words(blocks_in(MOST_BYTES)).is_none());
        assert!(theirs.receiver_words(u32::MAX).is_none());
    }

    #[test]
    fn the_descriptor_gives_no_way_to_change_the_segment() {
        let (_share, fd) = share_of(MOST_BYTES);
        let (what, bytes) = (MemoryUse::ControlBlocks, MOST_BYTES);
        assert!(Mapping::of_file(what, fd.as_fd(), bytes, Access::ReadWrite).is_err());
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
    }

    #[test]
    fn an_unsealed_or_short_segment_is_refused() {
        let unsealed = create_memfd(MemoryUse::ControlBlocks, MOST_BYTES).unwrap();
        let refused = PeerControlSegment::accept(unsealed, MOST_BYTES).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::NotSealed { .. }),
            "{refused}"
        );

        let short = create_memfd(MemoryUse::ControlBlocks, 4096).unwrap();
        fcntl_add_seals(&short, sealed::SEALS).unwrap();
        let refused = PeerControlSegment::accept(short, MOST_BYTES).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::WrongSize { found: 4096, .. }),
            "{refused}"
        );
    }

    #[test]
    fn nothing_is_left_after_drop() {
        let (share, fd) = share_of(MOST_BYTES);
        let file = probe::inode(&fd);
        let theirs = PeerControlSegment::accept(fd, MOST_BYTES).unwrap();
        let block = share.lease_block().unwrap();
        drop((share, theirs));
        assert_eq!(
            probe::mappings_of(file),
            1,
            "a leased block keeps its segment"
        );
        drop(block);
        assert_eq!(probe::mappings_of(file), 0);
    }
}
