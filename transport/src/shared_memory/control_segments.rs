//! The control segments of a node, shared by its sessions with one process: a page has blocks for
//! 16 channel ends, and most sessions have one or two. A session that needs one of the longest has
//! it alone, so that the number of its segments follows from the number of its ends.
//!
//! Sharing reveals nothing: that process may map each segment read-only anyway, and finds in it
//! only words of its own sessions.
#![forbid(unsafe_code)]

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, Weak},
};

use ibex_base::sync::lock;
use ibex_ring::memory::MemoryError;

use super::control_segment::{ControlBlock, ControlSegment, MOST_BYTES, SegmentShare};

/// The segments from which sessions may still get blocks.
#[derive(Debug, Default)]
pub struct ControlSegments(Mutex<Vec<SharedSegment>>);

/// The process that may read a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentReader {
    /// The process's number, according to the kernel.
    pub pid: u32,
    /// The incarnation of the process's node, as the node itself states, because process numbers
    /// are reused.
    pub incarnation: u64,
}

#[derive(Debug)]
struct SharedSegment {
    reader: SegmentReader,
    bytes: usize,
    segment: Weak<ControlSegment>,
}

impl ControlSegments {
    /// Provides a block in a segment of `bytes` bytes. Makes a segment if none has a free block. An
    /// unknown reader gets a segment of its own, and so does the only session with its process: no
    /// descriptor is kept for that.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn provide(
        &self,
        reader: Option<SegmentReader>,
        bytes: usize,
    ) -> Result<Provided, MemoryError> {
        let Some(reader) = reader.filter(|_| bytes < MOST_BYTES) else {
            return Ok(Provided::new(ControlSegment::create(bytes, false)?));
        };
        // Locked to the end: a session of another engine could take the last block otherwise.
        let mut all = lock(&self.0);
        let is_meant = |shared: &&SharedSegment| shared.reader == reader && shared.bytes == bytes;
        let found = all
            .iter()
            .find(is_meant)
            .and_then(|one| one.segment.upgrade());
        if let Some(segment) = &found
            && let Some(fd) = segment.to_pass()?
        {
            let share = SegmentShare::new(segment.clone());
            if let Some(block) = share.lease_block() {
                return Ok(Provided { share, block, fd });
            }
        }
        let (segment, fd) = ControlSegment::create(bytes, found.is_some())?;
        all.retain(|shared| !is_meant(&shared) && shared.segment.strong_count() > 0);
        all.push(SharedSegment {
            reader,
            bytes,
            segment: Arc::downgrade(&segment),
        });
        Ok(Provided::new((segment, fd)))
    }
}

/// A session's share in a segment that is new to it.
#[derive(Debug)]
pub struct Provided {
    /// The share.
    pub share: Arc<SegmentShare>,
    /// The first block.
    pub block: ControlBlock,
    /// A descriptor to pass to the peer and then close.
    pub fd: OwnedFd,
}

impl Provided {
    fn new((segment, fd): (Arc<ControlSegment>, OwnedFd)) -> Self {
        let share = SegmentShare::new(segment);
        let block = share.lease_block().expect("all of its blocks are free");
        Self { share, block, fd }
    }
}

#[cfg(test)]
mod tests {
    use ibex_ring::memory::probe::inode;

    use super::{super::aside::tests::open_descriptors_of, *};

    const READER: SegmentReader = SegmentReader {
        pid: 1,
        incarnation: 2,
    };
    const BYTES: usize = 4 << 10;

    #[test]
    fn sessions_with_one_process_share_a_segment_until_it_is_full() {
        let all = ControlSegments::default();
        let provide = || all.provide(Some(READER), BYTES).unwrap();
        let alone = provide();
        let [first, second] = [provide(), provide()];
        assert!(!first.share.is_of(&alone.share) && second.share.is_of(&first.share));
        let shares = [&first.share, &second.share];
        let blocks: Vec<_> = (0..14).map(|turn| shares[turn % 2].lease_block()).collect();
        assert!(blocks.iter().all(Option::is_some));
        assert!(shares[0].lease_block().is_none());
        let third = provide();
        assert!(!third.share.is_of(&first.share));
        assert_eq!(inode(&first.fd), inode(&second.fd));
    }

    #[test]
    fn no_descriptor_is_kept_for_a_session_that_shares_nothing() {
        let all = ControlSegments::default();
        let provide = |reader, bytes| all.provide(reader, bytes).unwrap();
        for (reader, bytes, kept) in [
            (None, BYTES, 0),
            (Some(READER), BYTES, 0),
            (Some(READER), 2 * BYTES, 0),
            (Some(READER), MOST_BYTES, 0),
            (Some(READER), BYTES, 1),
        ] {
            let Provided { share, block, fd } = provide(reader, bytes);
            let file = inode(&fd);
            drop(fd);
            assert_eq!(open_descriptors_of(file), kept);
            // The sessions go on.
            std::mem::forget((share, block));
        }
    }

    #[test]
    fn no_other_process_nor_an_unknown_one_gets_it() {
        let all = ControlSegments::default();
        let _alone = all.provide(Some(READER), BYTES).unwrap();
        let ours = all.provide(Some(READER), BYTES).unwrap();
        let later = SegmentReader {
            incarnation: 3,
            ..READER
        };
        for (reader, bytes) in [
            (Some(later), BYTES),
            (None, BYTES),
            (Some(READER), 2 * BYTES),
            (Some(READER), MOST_BYTES),
        ] {
            let other = all.provide(reader, bytes).unwrap();
            assert!(!ours.share.is_of(&other.share));
        }
    }

    #[test]
    fn a_segment_goes_with_its_last_session() {
        let all = ControlSegments::default();
        drop(all.provide(Some(READER), BYTES).unwrap());
        assert_eq!(all.0.lock().unwrap()[0].segment.strong_count(), 0);
        let _again = all.provide(Some(READER), BYTES).unwrap();
        assert_eq!(all.0.lock().unwrap().len(), 1);
    }
}
